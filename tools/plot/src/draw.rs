//! Drawing of figures, by `plotters`.

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::{CoordTranslate, Shift};
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, DashedPathElement, PathElement, Rectangle, Text};
use plotters::prelude::{DrawingBackend, SVGBackend};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, RGBColor, ShapeStyle, WHITE};

use crate::axis::Axis;
use crate::{Figure, Row, Series, Shape};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
type Outcome<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

const FIGURE: (u32, u32) = (740, 400);
const HEAD: u32 = 36;
const SUBHEAD: u32 = 22;
const LEGEND_LINE: u32 = 20;
const MARGIN: u32 = 12;
/// Largest number of points for which a line shows a mark at each point: more marks would hide the
/// line.
const POINTS_MAX: usize = 40;
/// Longest name, in characters, that fits into a narrow column of a legend.
const NAME_CHARS: usize = 28;
const FONT: &str = "Helvetica, Arial, sans-serif";

/// Colours of series: dark enough on white, and distinct for colour-blind readers.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x60, 0xa8),
    RGBColor(0xc2, 0x4a, 0x00),
    RGBColor(0x00, 0x79, 0x5a),
    RGBColor(0x8a, 0x3b, 0x8f),
    RGBColor(0x4d, 0x4d, 0x4d),
    RGBColor(0xa0, 0x74, 0x00),
    RGBColor(0xb3, 0x15, 0x3f),
    RGBColor(0x2c, 0x9a, 0xb7),
];
const INK: RGBColor = RGBColor(0x1a, 0x1a, 0x1a);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Draws rows of figures, one below the other, as the text of an SVG file.
#[must_use]
pub fn render(rows: &[Row]) -> String {
    let width = rows.iter().map(Row::width).max().unwrap_or(FIGURE.0);
    let height = rows.iter().map(Row::height).sum::<u32>().max(1);
    let mut svg = String::new();
    let mut rest = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
    // Writing to a string does not fail.
    let _ = rest.fill(&WHITE);
    for row in rows {
        let (own, below) = rest.split_vertically(row.height());
        let _ = row.draw(&own);
        rest = below;
    }
    let _ = rest.present();
    drop(rest);
    svg
}

fn font(size: u32) -> FontDesc<'static> {
    // A size in `plotters` is 1.24 times that of SVG.
    FontDesc::new(FontFamily::Name(FONT), f64::from(size) * 1.24, FontStyle::Normal)
}

impl Row {
    fn width(&self) -> u32 {
        FIGURE.0 * self.figures.len().max(1) as u32
    }

    fn head(&self) -> u32 {
        HEAD + if self.subtitle.is_empty() { 0 } else { SUBHEAD }
    }

    fn series(&self) -> &[Series] {
        self.figures.first().map_or(&[], |figure| &figure.series)
    }

    fn legend_columns(&self) -> usize {
        let is_long = |series: &Series| series.name.chars().count() > NAME_CHARS;
        let columns = if self.series().iter().any(is_long) { 2 } else { 3 };
        columns * self.figures.len().max(1)
    }

    fn height(&self) -> u32 {
        let lines = self.series().len().div_ceil(self.legend_columns()) as u32;
        self.head() + FIGURE.1 + lines * LEGEND_LINE + MARGIN
    }

    fn draw<'a>(&self, area: &Area<'a>) -> Outcome<'a> {
        let (head, body) = area.split_vertically(self.head());
        let bold = font(18).style(FontStyle::Bold).color(&INK);
        head.draw(&Text::new(self.title.as_str(), (20, 12), bold))?;
        head.draw(&Text::new(self.subtitle.as_str(), (20, HEAD as i32), font(13).color(&INK)))?;
        let (figures, legend) = body.split_vertically(FIGURE.1);
        for (figure, area) in
            self.figures.iter().zip(figures.split_evenly((1, self.figures.len().max(1))))
        {
            figure.draw(&area)?;
        }
        let columns = self.legend_columns();
        for (at, series) in self.series().iter().enumerate() {
            let x = 20 + (self.width() as usize - 40) / columns * (at % columns);
            let y = LEGEND_LINE as usize * (at / columns) + 10;
            let (x, y) = (x as i32, y as i32);
            match self.figures.first().map(|figure| &figure.shape) {
                Some(Shape::Bars(_)) => {
                    let square = [(x + 12, y - 6), (x + 24, y + 6)];
                    legend.draw(&Rectangle::new(square, colour(at).filled()))?;
                }
                _ => stroke(&legend, at, [(x, y), (x + 26, y)])?,
            }
            legend.draw(&Text::new(series.name.as_str(), (x + 34, y - 6), font(13).color(&INK)))?;
        }
        Ok(())
    }
}

impl Figure {
    fn draw<'a>(&self, area: &Area<'a>) -> Outcome<'a> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (log_x, log_y) = match self.shape {
            Shape::Lines { log_x, log_y } => (log_x, log_y),
            Shape::Bars(_) => (false, false),
        };
        let y = Axis::of(points().map(|point| point.1), log_y, self.units.1);
        let x = match &self.shape {
            Shape::Bars(groups) => Axis::of_groups(groups),
            Shape::Lines { .. } => Axis::of(points().map(|point| point.0), log_x, self.units.0),
        };
        let mut builder = ChartBuilder::on(area);
        builder.margin(MARGIN).margin_right(24).x_label_area_size(48).y_label_area_size(78);
        if !self.title.is_empty() {
            builder.caption(&self.title, font(14).style(FontStyle::Bold).color(&INK));
        }
        let (marks_x, marks_y) = (x.ticks(), y.ticks());
        let mut chart = builder.build_cartesian_2d(x, y)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(&self.x).y_desc(&self.y).x_labels(marks_x).y_labels(marks_y);
        mesh.bold_line_style(GRID).light_line_style(WHITE).max_light_lines(0).axis_style(INK);
        mesh.label_style(font(12).color(&INK)).axis_desc_style(font(13).color(&INK));
        if matches!(self.shape, Shape::Bars(_)) {
            mesh.disable_x_mesh();
        }
        mesh.draw()?;
        match &self.shape {
            Shape::Lines { .. } => self.draw_lines(&mut chart),
            Shape::Bars(_) => self.draw_bars(&mut chart),
        }
    }

    fn draw_lines<'a>(&self, chart: &mut Chart<'_, 'a>) -> Outcome<'a> {
        for (at, series) in self.series.iter().enumerate() {
            let area = chart.plotting_area();
            let spec = area.as_coord_spec();
            let shown = |(x, y): &&(f64, f64)| spec.x_spec().shows(*x) && spec.y_spec().shows(*y);
            let points = Vec::from_iter(series.points.iter().filter(shown).copied());
            stroke(area, at, points.iter().copied())?;
            if points.len() <= POINTS_MAX {
                for point in points {
                    area.draw(&Circle::new(point, 3, colour(at).filled()))?;
                }
            }
        }
        Ok(())
    }

    fn draw_bars<'a>(&self, chart: &mut Chart<'_, 'a>) -> Outcome<'a> {
        let width = 0.8 / self.series.len().max(1) as f64;
        for (at, series) in self.series.iter().enumerate() {
            for (group, value) in series.points.iter().filter(|(_, value)| value.is_finite()) {
                let left = group + 0.1 + width * at as f64;
                let bar = [(left, 0.0), (left + width, *value)];
                chart.plotting_area().draw(&Rectangle::new(bar, colour(at).filled()))?;
            }
        }
        Ok(())
    }
}

fn colour(at: usize) -> RGBColor {
    COLOURS[at % COLOURS.len()]
}

/// Draws a solid line, or a dashed one for series that reuse a colour.
fn stroke<'a, C: CoordTranslate<From: Clone + 'static>>(
    area: &DrawingArea<SVGBackend<'a>, C>,
    at: usize,
    points: impl IntoIterator<Item = C::From>,
) -> Outcome<'a> {
    let style = ShapeStyle::from(colour(at)).stroke_width(2);
    let points = Vec::from_iter(points);
    if at < COLOURS.len() {
        return area.draw(&PathElement::new(points, style));
    }
    area.draw(&DashedPathElement::new(points, 7, 4, style))
}

#[cfg(test)]
mod tests {
    use crate::{Figure, Row};

    #[test]
    fn everything_that_can_be_shown_is_drawn() {
        let lines = Figure::lines("n", "a < b", ("x", "y"), (true, true))
            .with("one", vec![(1.0, 10.0), (1e3, 1e5), (0.0, 3.0), (5.0, f64::NAN)]);
        let svg = lines.render();
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"));
        let bars = Figure::bars("n", "t", "y", &["g", "h"]);
        let bars = bars.with_bars("one", &[1.0, 2.0]).with_bars("two", &[0.5, 0.0]);
        // One for the page, four bars, and two in the legend.
        assert_eq!(bars.render().matches("<rect").count(), 1 + 4 + 2);
        for empty in [Figure::bars("n", "t", "y", &[]), lines.clone()] {
            let empty = Figure { series: Vec::new(), ..empty };
            assert!(empty.render().ends_with("</svg>\n"));
        }
        // Lines that reuse a colour are dashed, and each is in the legend once.
        let many = (0..9)
            .fold(lines, |figure, at| figure.with(format!("s{at}"), vec![(1.0, 2.0), (9.0, 9.0)]));
        let row = |title: &str| Row {
            title: title.to_owned(),
            subtitle: "below".to_owned(),
            figures: vec![many.clone(), many.clone()],
        };
        let page = super::render(&[row("first row"), row("second row")]);
        for text in ["first row", "second row", "s8"] {
            assert_eq!(page.matches(text).count(), if text == "s8" { 2 } else { 1 }, "{text}");
        }
        assert!(super::render(&[]).contains("<svg "));
    }
}
