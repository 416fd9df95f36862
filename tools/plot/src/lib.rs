//! Figures as SVG: lines and bars, alone ([`Figure::render`]) or on a page ([`render`]).

mod axis;
mod draw;
pub mod sweep;

use serde::Serialize;

pub use axis::Unit;
pub use draw::render;

/// Some values with a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// x and y; of bars x is the place, from 0. What an axis cannot show (no number, or 0 and less
    /// on a logarithmic one) is left out.
    pub points: Vec<(f64, f64)>,
}

/// How values are shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Points joined by lines, on axes that may be logarithmic.
    Lines {
        /// Whether x is.
        log_x: bool,
        /// Whether y is.
        log_y: bool,
    },
    /// Bars side by side, in groups with these names.
    Bars(Vec<String>),
}

/// Lines or bars between two axes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What the file is called, without its ending.
    pub name: String,
    /// The line above.
    pub title: String,
    /// What x is, with its unit.
    pub x: String,
    /// What y is, with its unit.
    pub y: String,
    /// Lines or bars.
    pub shape: Shape,
    /// The values.
    pub series: Vec<Series>,
    /// How the numbers of both axes are written.
    #[serde(skip)]
    pub units: (Unit, Unit),
}

/// Figures side by side that show the same series, with one legend below them.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The large line above.
    pub title: String,
    /// The small line below it; may be empty.
    pub subtitle: String,
    /// The figures, from left to right.
    pub figures: Vec<Figure>,
}

impl Figure {
    /// Bars in named groups.
    #[must_use]
    pub fn bars(name: &str, title: &str, y: &str, groups: &[&str]) -> Figure {
        let shape = Shape::Bars(groups.iter().map(|&group| group.to_owned()).collect());
        Figure::new(name, title, ("", y), shape)
    }

    /// Lines.
    #[must_use]
    pub fn lines(name: &str, title: &str, (x, y): (&str, &str), log: (bool, bool)) -> Figure {
        Figure::new(name, title, (x, y), Shape::Lines { log_x: log.0, log_y: log.1 })
    }

    fn new(name: &str, title: &str, (x, y): (&str, &str), shape: Shape) -> Figure {
        let [name, title, x, y] = [name, title, x, y].map(str::to_owned);
        Figure { name, title, x, y, shape, series: Vec::new(), units: Default::default() }
    }

    /// With one more series of points.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, points: Vec<(f64, f64)>) -> Figure {
        self.series.push(Series { name: name.into(), points });
        self
    }

    /// With one more series of bars, one for each group.
    #[must_use]
    pub fn with_bars(self, name: impl Into<String>, values: &[f64]) -> Figure {
        let points = values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect();
        self.with(name, points)
    }

    /// The figure as the text of an SVG file.
    #[must_use]
    pub fn render(&self) -> String {
        let figure = Figure { title: String::new(), ..self.clone() };
        let title = self.title.clone();
        render(&[Row { title, subtitle: String::new(), figures: vec![figure] }])
    }
}
