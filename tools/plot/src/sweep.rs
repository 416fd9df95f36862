//! A figure as SVG, written by hand: time (both axes logarithmic) and bus bandwidth against size,
//! side by side, for any number of series. Other tools compare transports or commits with it.

use std::fmt::Write as _;

/// One measured size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes; sizes of 0 are left out, the axis being logarithmic.
    pub size_bytes: f64,
    /// Microseconds.
    pub time_us: f64,
    /// 10^9 bytes a second.
    pub bus_gbps: f64,
}

/// A line in both panels.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, by size.
    pub points: Vec<Point>,
}

/// Everything that is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The large line above.
    pub title: String,
    /// The small line below it.
    pub subtitle: String,
    /// The lines.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 1160.0;
const PANEL_TOP: f64 = 92.0;
const PANEL_WIDTH: f64 = 460.0;
const PANEL_HEIGHT: f64 = 330.0;
const PANEL_LEFTS: [f64; 2] = [86.0, 666.0];
const LEGEND_TOP: f64 = PANEL_TOP + PANEL_HEIGHT + 74.0;
const LEGEND_LINE: f64 = 22.0;
const LEGEND_COLUMNS: usize = 3;

/// Dark enough on white, and told apart by readers who do not see all colours.
const COLOURS: [&str; 8] =
    ["#0060a8", "#c24a00", "#00795a", "#8a3b8f", "#4d4d4d", "#a07400", "#b3153f", "#2c9ab7"];

/// The figure as the text of an SVG file.
#[must_use]
pub fn render(figure: &Figure) -> String {
    let legend_lines = figure.series.len().div_ceil(LEGEND_COLUMNS);
    let height = LEGEND_TOP + LEGEND_LINE * legend_lines as f64 + 8.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"Helvetica, Arial, sans-serif\" \
         font-size=\"13\" fill=\"#1a1a1a\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"28\" y=\"34\" font-size=\"20\" font-weight=\"bold\">{}</text>\n\
         <text x=\"28\" y=\"56\">{}</text>\n",
        escaped(&figure.title),
        escaped(&figure.subtitle),
    );
    let points = || figure.series.iter().flat_map(|series| &series.points).filter(drawable);
    let sizes = Axis::powers(2.0, points().map(|point| point.size_bytes));
    let times = Axis::powers(10.0, points().map(|point| point.time_us));
    let rates = Axis::from_zero(points().map(|point| point.bus_gbps));
    let panels = [
        Panel {
            left: PANEL_LEFTS[0],
            title: "Time per call",
            sizes: &sizes,
            values: &times,
            label: time_label,
            value: |point| point.time_us,
        },
        Panel {
            left: PANEL_LEFTS[1],
            title: "Bus bandwidth",
            sizes: &sizes,
            values: &rates,
            label: |value| format!("{} GB/s", super::number::general(value)),
            value: |point| point.bus_gbps,
        },
    ];
    for panel in &panels {
        panel.draw(&mut svg, &figure.series);
    }
    legend(&mut svg, &figure.series);
    svg + "</svg>\n"
}

fn drawable(point: &&Point) -> bool {
    let positive = |value: f64| value.is_finite() && value > 0.0;
    positive(point.size_bytes) && positive(point.time_us) && point.bus_gbps.is_finite()
}

/// Maps values to `0..=1` and knows where its lines are.
#[derive(Clone, Debug, PartialEq)]
struct Axis {
    /// The base of the logarithm, or nothing for a linear axis.
    base: Option<f64>,
    /// On the mapped scale: exponents, or values.
    min: f64,
    max: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// A logarithmic axis from one power to another, with at most eight labels.
    fn powers(base: f64, values: impl Iterator<Item = f64>) -> Axis {
        let exponents = values.map(|value| value.log(base));
        let (low, high) = exponents
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), e| (low.min(e), high.max(e)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        // A hair of slack: the logarithm of a power is not always whole.
        let (min, mut max) = ((low + 1e-9).floor(), (high - 1e-9).ceil());
        if max <= min {
            max = min + 1.0;
        }
        let step = ((max - min) / 7.0).ceil().max(1.0);
        let count = ((max - min) / step).floor() as u32;
        let ticks = (0..=count).map(|tick| base.powf(min + f64::from(tick) * step)).collect();
        Axis { base: Some(base), min, max, ticks }
    }

    /// A linear axis from 0 to the next round number.
    fn from_zero(values: impl Iterator<Item = f64>) -> Axis {
        let highest = values.fold(0.0, f64::max);
        let highest = if highest > 0.0 { highest } else { 1.0 };
        let magnitude = 10.0_f64.powf((highest / 5.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
        let step = steps.into_iter().find(|step| highest / step <= 6.5).unwrap_or(highest);
        let count = (highest / step).ceil();
        let ticks = (0..=count as u32).map(|tick| f64::from(tick) * step).collect();
        Axis { base: None, min: 0.0, max: count * step, ticks }
    }

    fn position(&self, value: f64) -> f64 {
        let mapped = self.base.map_or(value, |base| value.log(base));
        (mapped - self.min) / (self.max - self.min)
    }
}

struct Panel<'a> {
    left: f64,
    title: &'a str,
    sizes: &'a Axis,
    values: &'a Axis,
    label: fn(f64) -> String,
    value: fn(&Point) -> f64,
}

impl Panel<'_> {
    fn x(&self, size_bytes: f64) -> f64 {
        self.left + PANEL_WIDTH * self.sizes.position(size_bytes)
    }

    fn y(&self, value: f64) -> f64 {
        PANEL_TOP + PANEL_HEIGHT * (1.0 - self.values.position(value))
    }

    // Writing to a String cannot fail, here and below.
    fn draw(&self, svg: &mut String, series: &[Series]) {
        let (left, right) = (self.left, self.left + PANEL_WIDTH);
        let bottom = PANEL_TOP + PANEL_HEIGHT;
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
            PANEL_TOP - 12.0,
            self.title
        );
        for &tick in &self.values.ticks {
            let y = self.y(tick);
            let _ = writeln!(
                svg,
                "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#d9d9d9\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                y + 4.5,
                (self.label)(tick)
            );
        }
        for &tick in &self.sizes.ticks {
            let x = self.x(tick);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {PANEL_TOP}V{bottom}\" stroke=\"#ececec\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 19.0,
                size_label(tick)
            );
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {PANEL_TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#1a1a1a\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">size</text>",
            left + PANEL_WIDTH / 2.0,
            bottom + 41.0
        );
        for (index, series) in series.iter().enumerate() {
            self.line(svg, series, index);
        }
    }

    fn line(&self, svg: &mut String, series: &Series, index: usize) {
        let at = |point: &Point| (self.x(point.size_bytes), self.y((self.value)(point)));
        let places: Vec<(f64, f64)> = series.points.iter().filter(drawable).map(at).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke-linejoin=\"round\" {}/>",
            path.join(" "),
            stroke(index)
        );
        for (x, y) in places {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{}\"/>",
                colour(index)
            );
        }
    }
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Solid lines until the colours run out, then dashed ones.
fn stroke(index: usize) -> String {
    let dash = match index / COLOURS.len() {
        0 => "",
        1 => " stroke-dasharray=\"7 4\"",
        _ => " stroke-dasharray=\"2 3\"",
    };
    format!("stroke=\"{}\" stroke-width=\"2\"{dash}", colour(index))
}

fn legend(svg: &mut String, series: &[Series]) {
    for (index, series) in series.iter().enumerate() {
        let column = (WIDTH - 56.0) / LEGEND_COLUMNS as f64;
        let x = 28.0 + column * (index % LEGEND_COLUMNS) as f64;
        let y = LEGEND_TOP + LEGEND_LINE * (index / LEGEND_COLUMNS) as f64;
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}h26\" {}/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 4.5,
            stroke(index),
            x + 34.0,
            escaped(&series.name)
        );
    }
}

fn size_label(bytes: f64) -> String {
    let (value, unit) = match bytes {
        b if b >= 1024.0 * 1024.0 * 1024.0 => (b / 1024.0 / 1024.0 / 1024.0, "GiB"),
        b if b >= 1024.0 * 1024.0 => (b / 1024.0 / 1024.0, "MiB"),
        b if b >= 1024.0 => (b / 1024.0, "KiB"),
        b => (b, "B"),
    };
    format!("{} {unit}", super::number::general(value))
}

fn time_label(time_us: f64) -> String {
    let (value, unit) = match time_us {
        t if t >= 0.999e6 => (t / 1e6, "s"),
        t if t >= 999.0 => (t / 1e3, "ms"),
        t if t >= 0.999 => (t, "µs"),
        t => (t * 1e3, "ns"),
    };
    format!("{} {unit}", super::number::general(value))
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(points: Vec<Point>) -> Figure {
        let series = vec![Series { name: "shm <&>".to_owned(), points }];
        Figure { title: "T".to_owned(), subtitle: String::new(), series }
    }

    #[test]
    fn axes_have_few_round_ticks_around_the_data() {
        let sizes = Axis::powers(2.0, [8.0, 67_108_864.0].into_iter());
        assert_eq!((sizes.min, sizes.max), (3.0, 26.0));
        assert!(sizes.ticks.len() <= 8 && sizes.ticks[0] == 8.0);
        assert_eq!(sizes.position(8.0), 0.0);
        let rates = Axis::from_zero([0.3, 11.2].into_iter());
        assert_eq!((rates.max, rates.ticks.len()), (12.0, 7));
        assert_eq!(Axis::powers(10.0, std::iter::empty()).ticks, [1.0, 10.0]);
        assert_eq!(Axis::powers(10.0, [100.0].into_iter()).max, 3.0);
    }

    #[test]
    fn every_drawable_point_is_drawn_inside_its_panel() {
        let point = |size_bytes, time_us, bus_gbps| Point { size_bytes, time_us, bus_gbps };
        let svg = render(&figure(vec![
            point(0.0, 1.0, 0.0),
            point(8.0, 0.3, 0.02),
            point(1e6, 120.0, 8.0),
            point(16.0, f64::NAN, 1.0),
        ]));
        let circles: Vec<&str> = svg.lines().filter(|line| line.contains("<circle")).collect();
        assert_eq!(circles.len(), 4, "two points in two panels");
        for circle in circles {
            let number = |key: &str| -> f64 {
                let rest = circle.split_once(key).unwrap().1;
                rest.split_once('"').unwrap().0.parse().unwrap()
            };
            let y = number("cy=\"");
            assert!((PANEL_TOP..=PANEL_TOP + PANEL_HEIGHT).contains(&y), "{circle}");
            assert!(number("cx=\"") <= WIDTH);
        }
        assert!(svg.contains("shm &lt;&amp;&gt;") && !svg.contains("NaN"));
        assert!(render(&figure(Vec::new())).contains("</svg>"));
    }
}
