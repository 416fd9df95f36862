//! Which devices and ports are used; NCCL's syntax.

/// Names or prefixes of names, each with or without a port (`mlx5_0:1`), separated by commas; `=`
/// before the first takes names as they are, `^` takes all others (both: `^=`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    exclude: bool,
    exact: bool,
    entries: Vec<(String, Option<u8>)>,
}

impl Filter {
    pub(crate) fn parse(text: &str) -> Filter {
        let (exclude, text) = strip(text.trim(), '^');
        let (exact, text) = strip(text, '=');
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let entry = |entry: &str| match entry.split_once(':') {
            Some((name, port)) => (name.to_owned(), port.parse().ok()),
            None => (entry.to_owned(), None),
        };
        Filter { exclude, exact, entries: entries.map(entry).collect() }
    }

    /// Whether a port of a device is to be used.
    pub(crate) fn takes(&self, device: &str, port: u8) -> bool {
        let listed = self.entries.iter().any(|(name, only)| {
            let named = if self.exact { device == name } else { device.starts_with(name.as_str()) };
            named && only.is_none_or(|only| only == port)
        });
        self.entries.is_empty() || listed != self.exclude
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
}
