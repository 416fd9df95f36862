//! Figures as SVG: lines and bars, alone ([`Figure::render`]) or on a page ([`render`]).

mod axis;
mod draw;
pub mod sweep;

use serde::Serialize;

pub use axis::Unit;
pub use draw::render;

/// Values with a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Text in the legend.
    pub name: String,
    /// Points (x, y); for bars x is the number of the group, from 0. Values that an axis cannot
    /// show (NaN or infinite, or 0 and less on a logarithmic one) are left out.
    pub points: Vec<(f64, f64)>,
}

/// Kind of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Points joined by lines, on axes that can be logarithmic.
    Lines {
        /// True if the x axis is logarithmic.
        log_x: bool,
        /// True if the y axis is logarithmic.
        log_y: bool,
    },
    /// Bars side by side, in groups with these names.
    Bars(Vec<String>),
}

/// Lines or bars between two axes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the file, without its ending.
    pub name: String,
    /// Text above the figure.
    pub title: String,
    /// Text of the x axis, with its unit.
    pub x: String,
    /// Text of the y axis, with its unit.
    pub y: String,
    /// Lines or bars.
    pub shape: Shape,
    /// Series of values.
    pub series: Vec<Series>,
    /// Notation of the numbers of both axes.
    #[serde(skip)]
    pub units: (Unit, Unit),
}

/// Figures side by side that show the same series, with one legend below them.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Large text above the figures.
    pub title: String,
    /// Small text below the title; can be empty.
    pub subtitle: String,
    /// Figures from left to right.
    pub figures: Vec<Figure>,
}

impl Figure {
    /// Creates a figure of bars in named groups.
    #[must_use]
    pub fn bars(name: &str, title: &str, y: &str, groups: &[&str]) -> Figure {
        let shape = Shape::Bars(groups.iter().map(|&group| group.to_owned()).collect());
        Figure::new(name, title, ("", y), shape)
    }

    /// Creates a figure of lines.
    #[must_use]
    pub fn lines(name: &str, title: &str, (x, y): (&str, &str), log: (bool, bool)) -> Figure {
        Figure::new(name, title, (x, y), Shape::Lines { log_x: log.0, log_y: log.1 })
    }

    fn new(name: &str, title: &str, (x, y): (&str, &str), shape: Shape) -> Figure {
        let [name, title, x, y] = [name, title, x, y].map(str::to_owned);
        Figure { name, title, x, y, shape, series: Vec::new(), units: Default::default() }
    }

    /// Adds a series of points.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, points: Vec<(f64, f64)>) -> Figure {
        self.series.push(Series { name: name.into(), points });
        self
    }

    /// Adds a series of bars, one for each group.
    #[must_use]
    pub fn with_bars(self, name: impl Into<String>, values: &[f64]) -> Figure {
        let points = values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect();
        self.with(name, points)
    }

    /// Returns the figure as the text of an SVG file.
    #[must_use]
    pub fn render(&self) -> String {
        let figure = Figure { title: String::new(), ..self.clone() };
        let title = self.title.clone();
        render(&[Row { title, subtitle: String::new(), figures: vec![figure] }])
    }
}
