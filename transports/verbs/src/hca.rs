//! Filter for devices and ports, in NCCL's syntax.

/// Filter for devices: names or prefixes of names, each with or without a port, rail and plane
/// (`mlx5_0:1:0:2`, see [`Fabric`](ccl_core::transport::Fabric)), separated by commas. After a
/// leading `=`, only whole names match. After a leading `^`, all devices are taken except those
/// that match. Both may be combined: `^=`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    exclude: bool,
    exact: bool,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    port: Option<u8>,
    /// Rail and plane, as far as the entry names them.
    position: [Option<u16>; 2],
}

impl Filter {
    pub(crate) fn parse(text: &str) -> Filter {
        let (exclude, text) = strip(text.trim(), '^');
        let (exact, text) = strip(text, '=');
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let entry = |entry: &str| {
            let mut parts = entry.split(':');
            let name = parts.next().unwrap_or_default().to_owned();
            let port = parts.next().and_then(|port| port.parse().ok());
            let mut next = || parts.next().and_then(|number| number.parse().ok());
            Entry { name, port, position: [next(), next()] }
        };
        Filter { exclude, exact, entries: entries.map(entry).collect() }
    }

    /// Returns the first entry that matches a port of a device.
    fn find(&self, device: &str, port: u8) -> Option<&Entry> {
        let names = |entry: &&Entry| {
            let Entry { name, port: only, .. } = entry;
            let named = if self.exact { device == name } else { device.starts_with(name.as_str()) };
            named && only.is_none_or(|only| only == port)
        };
        self.entries.iter().find(names)
    }

    /// Returns whether a port of a device is to be used.
    pub(crate) fn takes(&self, device: &str, port: u8) -> bool {
        self.entries.is_empty() || self.find(device, port).is_some() != self.exclude
    }

    /// Returns the rail and the plane of a port that is used, as far as the matching entry names
    /// them.
    pub(crate) fn position(&self, device: &str, port: u8) -> [Option<u16>; 2] {
        let found = self.find(device, port).filter(|_| !self.exclude);
        found.map_or([None; 2], |entry| entry.position)
    }
}

fn strip(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign).map_or((false, text), |rest| (true, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_ports_and_prefixes_are_understood() {
        let takes = |text: &str, device: &str, port| Filter::parse(text).takes(device, port);
        assert!(takes("", "mlx5_0", 1) && takes("mlx5", "mlx5_7", 2));
        assert!(takes("mlx5_0:1,rxe", "mlx5_0", 1) && !takes("mlx5_0:1,rxe", "mlx5_0", 2));
        assert!(takes("mlx5_0:1, rxe", "rxe3", 2));
        assert!(!takes("=mlx5_1", "mlx5_10", 1) && takes("mlx5_1", "mlx5_10", 1));
        assert!(!takes("^mlx5_0", "mlx5_0", 1) && takes("^mlx5_0", "mlx5_1", 1));
        assert!(takes("^=mlx5_1:2", "mlx5_1", 1) && !takes("^=mlx5_1:2", "mlx5_1", 2));
    }

    #[test]
    fn a_port_gets_the_rail_and_plane_of_the_entry_that_matches_it() {
        let position = |text: &str, device: &str, port| Filter::parse(text).position(device, port);
        let text = "mlx5_0:1:0:2,mlx5_1:1:1, mlx5_2::7:x";
        assert_eq!(position(text, "mlx5_0", 1), [Some(0), Some(2)]);
        assert_eq!(position(text, "mlx5_1", 1), [Some(1), None]);
        assert_eq!(position(text, "mlx5_2", 2), [Some(7), None]);
        assert_eq!(position(text, "mlx5_3", 1), [None; 2]);
        assert_eq!(position("^mlx5_0:1:3", "mlx5_0", 2), [None; 2]);
        assert_eq!(position("", "mlx5_0", 1), [None; 2]);
        assert!(Filter::parse(text).takes("mlx5_2", 1) && !Filter::parse(text).takes("mlx5_0", 2));
    }
}
