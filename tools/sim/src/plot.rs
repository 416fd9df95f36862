//! Figures as SVG, written by hand: lines, or bars.

use std::fmt::Write as _;

use serde::Serialize;

/// Some values with a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// x and y; of bars x is the place, from 0.
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

/// Everything that is drawn.
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
        Figure { name, title, x, y, shape, series: Vec::new() }
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
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 84.0;
const TOP: f64 = 56.0;
const PLOT_WIDTH: f64 = 640.0;
const PLOT_HEIGHT: f64 = 290.0;

/// Dark enough on white, and told apart by readers who do not see all colours.
const COLOURS: [&str; 8] =
    ["#0060a8", "#c24a00", "#00795a", "#8a3b8f", "#4d4d4d", "#a07400", "#b3153f", "#2c9ab7"];

/// The figure as the text of an SVG file.
#[must_use]
pub fn render(figure: &Figure) -> String {
    // Long names need wider columns.
    let is_long = |series: &Series| series.name.chars().count() > 28;
    let columns = if figure.series.iter().any(is_long) { 2 } else { 3 };
    let legend_lines = figure.series.len().div_ceil(columns);
    let height = HEIGHT + 20.0 * legend_lines.saturating_sub(2) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"Helvetica, Arial, sans-serif\" \
         font-size=\"12\" fill=\"#1a1a1a\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#ffffff\"/>\n<text x=\"20\" y=\"28\" font-size=\"16\" font-weight=\"bold\">{}\
         </text>\n",
        escaped(&figure.title)
    );
    let points = || figure.series.iter().flat_map(|series| &series.points);
    let (log_x, log_y) = match figure.shape {
        Shape::Lines { log_x, log_y } => (log_x, log_y),
        Shape::Bars(_) => (false, false),
    };
    let y = Axis::new(points().map(|point| point.1), log_y);
    let x = match &figure.shape {
        Shape::Bars(groups) => Axis { log: false, min: 0.0, max: groups.len().max(1) as f64 },
        Shape::Lines { .. } => Axis::new(points().map(|point| point.0), log_x),
    };
    frame(&mut svg, figure, &x, &y);
    match &figure.shape {
        Shape::Lines { .. } => lines(&mut svg, figure, &x, &y),
        Shape::Bars(groups) => bars(&mut svg, figure, groups, &y),
    }
    for (index, series) in figure.series.iter().enumerate() {
        let (column, line) = (index % columns, index / columns);
        let width = (WIDTH - 40.0) / columns as f64;
        let (at_x, at_y) = (20.0 + width * column as f64, TOP + PLOT_HEIGHT + 62.0);
        let at_y = at_y + 20.0 * line as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{at_x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{at_y:.1}\">{}</text>",
            at_y - 10.0,
            colour(index),
            at_x + 18.0,
            escaped(&series.name)
        );
    }
    svg + "</svg>\n"
}

/// Maps values to `0..=1`.
struct Axis {
    log: bool,
    /// On the mapped scale.
    min: f64,
    max: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, log: bool) -> Axis {
        let usable = |value: &f64| value.is_finite() && (!log || *value > 0.0);
        let mapped = values.filter(usable).map(|value| if log { value.log10() } else { value });
        let (low, high) = mapped
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        if log {
            let (min, max) = ((low + 1e-9).floor(), (high - 1e-9).ceil());
            return Axis { log, min, max: if max > min { max } else { min + 1.0 } };
        }
        let high = if high > 0.0 { high } else { 1.0 };
        let step = step(high);
        Axis { log, min: low.min(0.0), max: (high / step).ceil() * step }
    }

    fn ticks(&self) -> Vec<f64> {
        let step = if self.log {
            ((self.max - self.min) / 6.0).ceil().max(1.0)
        } else {
            step(self.max - self.min)
        };
        let count = ((self.max - self.min) / step + 1e-9).floor() as u32;
        let tick = |number: u32| self.min + f64::from(number) * step;
        (0..=count).map(tick).map(|at| if self.log { 10f64.powf(at) } else { at }).collect()
    }

    fn position(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        (value - self.min) / (self.max - self.min)
    }
}

/// A round number of which there are five or so up to this one.
fn step(high: f64) -> f64 {
    let magnitude = 10f64.powf((high / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
    steps.into_iter().find(|step| high / step <= 6.5).unwrap_or(high)
}

// Writing to a String cannot fail, here and below.
fn frame(svg: &mut String, figure: &Figure, x: &Axis, y: &Axis) {
    let (right, bottom) = (LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT);
    for tick in y.ticks() {
        let at = bottom - PLOT_HEIGHT * y.position(tick);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#d9d9d9\"/><text x=\"{:.1}\" \
             y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            number(tick)
        );
    }
    if matches!(figure.shape, Shape::Lines { .. }) {
        for tick in x.ticks() {
            let at = LEFT + PLOT_WIDTH * x.position(tick);
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                number(tick)
            );
        }
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#1a1a1a\"/>\
         <text x=\"{LEFT}\" y=\"{:.1}\">{}</text><text x=\"{:.1}\" y=\"{:.1}\" \
         text-anchor=\"middle\">{}</text>",
        TOP - 10.0,
        escaped(&figure.y),
        LEFT + PLOT_WIDTH / 2.0,
        bottom + 38.0,
        escaped(&figure.x)
    );
}

fn lines(svg: &mut String, figure: &Figure, x: &Axis, y: &Axis) {
    for (index, series) in figure.series.iter().enumerate() {
        let drawn = |(at, value): &(f64, f64)| {
            let place = (LEFT + PLOT_WIDTH * x.position(*at), y.position(*value));
            let place = (place.0, TOP + PLOT_HEIGHT * (1.0 - place.1));
            (place.0.is_finite() && place.1.is_finite()).then_some(place)
        };
        let places: Vec<(f64, f64)> = series.points.iter().filter_map(drawn).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
            path.join(" "),
            colour(index)
        );
        // Of long lines the points would hide the line.
        for (x, y) in places.iter().filter(|_| places.len() <= 40) {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{}\"/>",
                colour(index)
            );
        }
    }
}

fn bars(svg: &mut String, figure: &Figure, groups: &[String], y: &Axis) {
    let group_width = PLOT_WIDTH / groups.len().max(1) as f64;
    let width = group_width * 0.8 / figure.series.len().max(1) as f64;
    let bottom = TOP + PLOT_HEIGHT;
    for (at, group) in groups.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            LEFT + group_width * (at as f64 + 0.5),
            bottom + 18.0,
            escaped(group)
        );
    }
    for (index, series) in figure.series.iter().enumerate() {
        for (at, value) in series.points.iter().filter(|(_, value)| value.is_finite()) {
            let height = PLOT_HEIGHT * y.position(*value);
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
                 fill=\"{}\"/>",
                LEFT + group_width * (at + 0.1) + width * index as f64,
                bottom - height,
                colour(index)
            );
        }
    }
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// With as many digits as are needed to tell it from its neighbours.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if !(1e-3..1e6).contains(&v) => format!("{value:.0e}"),
        v if v >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        v if v >= 0.1 => format!("{:.1}", value),
        _ => format!("{value:.3}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_drawn_inside_the_frame() {
        let lines = Figure::lines("n", "a < b", ("x", "y"), (true, true))
            .with("one", vec![(1.0, 10.0), (1e3, 1e5), (0.0, 3.0), (5.0, f64::NAN)]);
        let svg = render(&lines);
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"));
        let bars = Figure::bars("n", "t", "y", &["g", "h"]);
        let bars = bars.with_bars("one", &[1.0, 2.0]).with_bars("two", &[0.5, 0.0]);
        assert_eq!(render(&bars).matches("<rect").count(), 1 + 4 + 2, "page, bars, legend");
        assert!(render(&Figure::bars("n", "t", "y", &[])).ends_with("</svg>\n"));
    }
}
