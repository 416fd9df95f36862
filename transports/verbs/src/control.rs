//! The traffic class of credits and CTS.
//!
//! A RoCE fabric gives congestion notifications priority over data, since they tell senders to slow
//! down. Credits and CTS are as short and as urgent as these notifications. If the driver of an
//! interface reports the DSCP of its notifications, credits and CTS use the same class.

/// The traffic class of credits and CTS, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) traffic_class: u8,
    pub(crate) why: &'static str,
}

impl Control {
    /// Chooses the class `asked`, if given; else the class of congestion notifications of the
    /// interface behind GID `row`, if known; else the class of data. `read` reads a file of sysfs.
    pub(crate) fn choose(
        asked: Option<u8>,
        data: u8,
        (device, port, row): (&str, u8, u32),
        read: impl Fn(&str) -> Option<String>,
    ) -> Control {
        let notifications = || {
            let rows = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs");
            let interface = read(&format!("{rows}/{row}"))?;
            let interface = interface.trim();
            let dscp = read(&format!("/sys/class/net/{interface}/ecn/roce_np/cnp_dscp"))?;
            let dscp: u8 = dscp.trim().parse().ok()?;
            (dscp < 64).then_some(dscp << 2)
        };
        match (asked, asked.is_none().then(notifications).flatten()) {
            (Some(traffic_class), _) => Control { traffic_class, why: "as configured" },
            (None, Some(traffic_class)) => {
                Control { traffic_class, why: "the class of congestion notifications" }
            }
            (None, None) => Control { traffic_class: data, why: "the class of data" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_notifications_is_used_unless_a_class_is_configured() {
        const INTERFACE: &str = "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3";
        let choose = |asked, dscp: Option<&str>| {
            Control::choose(asked, 104, ("mlx5_0", 1, 3), |file| match file {
                INTERFACE => Some("eth7\n".to_owned()),
                "/sys/class/net/eth7/ecn/roce_np/cnp_dscp" => dscp.map(str::to_owned),
                _ => None,
            })
        };
        let of_data = Control { traffic_class: 104, why: "the class of data" };
        assert_eq!(choose(None, None), of_data);
        let of_fabric =
            Control { traffic_class: 192, why: "the class of congestion notifications" };
        assert_eq!(choose(None, Some("48\n")), of_fabric);
        let asked = Control { traffic_class: 0, why: "as configured" };
        assert_eq!(choose(Some(0), Some("48\n")), asked);
        assert_eq!(choose(None, Some("64\n")), of_data, "64 is not a DSCP");
    }
}
