//! A sweep over sizes as figures: time and bus bandwidth against size, side by side, for any number
//! of series.

use crate::{Figure, Row, Unit};

/// Measurement of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Size in bytes; sizes of 0 are left out, because the axis is logarithmic.
    pub size_bytes: f64,
    /// Time in microseconds.
    pub time_us: f64,
    /// Bus bandwidth in 10^9 bytes per second.
    pub bus_gbps: f64,
}

/// Returns both figures, with a line in each for every named series.
#[must_use]
pub fn row(title: String, subtitle: String, series: &[(String, Vec<Point>)]) -> Row {
    let figure = |title, log, unit, value: fn(&Point) -> f64| {
        let empty = Figure::lines("sweep", title, ("size", ""), log);
        let empty = Figure { units: (Unit::Bytes, unit), ..empty };
        series.iter().fold(empty, |figure, (name, points)| {
            let points = points.iter().map(|point| (point.size_bytes, value(point)));
            figure.with(name.clone(), points.collect())
        })
    };
    let figures = vec![
        figure("Time per call", (true, true), Unit::Microseconds, |point| point.time_us),
        figure("Bus bandwidth, GB/s", (true, false), Unit::None, |point| point.bus_gbps),
    ];
    Row { title, subtitle, figures }
}
