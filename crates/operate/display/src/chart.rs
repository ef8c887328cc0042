//! Plots as inline SVG: lines, steps and stacked areas. They need no script or font and use only the page's colours.

use std::fmt::Write as _;

/// Size in SVG units: nearly the width of a phone.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 262.0;
/// Margins, with space for the axis labels.
const LEFT: f64 = 46.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 34.0;
/// Number of the page's series colours.
pub const COLOURS: usize = 10;
/// The next colour index: for the reference series.
pub const NEUTRAL: usize = COLOURS;
/// Approximate number of tick labels of an axis.
const TICKS: f64 = 5.0;
/// Maximum number of points of a line; longer series are thinned evenly.
const POINTS_LIMIT: usize = 400;

/// The plot style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Lines from point to point.
    Line,
    /// Steps: a value holds until the next point.
    Step,
    /// Stacked areas.
    Stack,
    /// Lines with marked points, for a few unevenly spaced points.
    Points,
}

/// One series.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Index of the page's colour.
    pub colour: usize,
    /// (x, y), in the units of the axes.
    pub points: Vec<(f64, f64)>,
    /// Whether its line is dashed.
    pub dashed: bool,
}

impl Series {
    /// A series with a solid line.
    pub fn new(name: impl Into<String>, colour: usize, points: Vec<(f64, f64)>) -> Series {
        Series {
            name: name.into(),
            colour: if colour == NEUTRAL {
                NEUTRAL
            } else {
                colour % COLOURS
            },
            points,
            dashed: false,
        }
    }

    /// Makes the line dashed.
    pub fn dashed(mut self) -> Series {
        self.dashed = true;
        self
    }
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title above the plot.
    pub title: String,
    /// Name and unit of the horizontal axis.
    pub x: &'static str,
    /// Name and unit of the vertical axis.
    pub y: &'static str,
    /// The plot style.
    pub style: Style,
    /// The series.
    pub series: Vec<Series>,
}

impl Chart {
    /// The plot as HTML, with title and legend.
    pub fn figure(&self) -> String {
        let mut text = format!(
            "<figure><figcaption>{}</figcaption>{}",
            escape(&self.title),
            self.svg()
        );
        if self.series.len() > 1 {
            text.push_str("<p class=\"legend\">");
            for series in &self.series {
                let dashed = if series.dashed { " dashed" } else { "" };
                let _ = write!(
                    text,
                    "<span><i class=\"k{}{dashed}\"></i>{}</span> ",
                    series.colour,
                    escape(&series.name)
                );
            }
            text.push_str("</p>");
        }
        text.push_str("</figure>");
        text
    }

    fn svg(&self) -> String {
        let stacked = (self.style == Style::Stack).then(|| stack(&self.series));
        let drawn = stacked.as_ref().map_or(&self.series, |stacked| stacked);
        let all = drawn.iter().flat_map(|series| &series.points);
        let x_max = all.clone().map(|point| point.0).fold(0.0, f64::max);
        let y_most = all.map(|point| point.1).fold(0.0, f64::max);
        let (x_step, y_step) = (tick(x_max), tick(y_most));
        let x_max = if x_max > 0.0 { x_max } else { 1.0 };
        let y_max = ((y_most / y_step).ceil() * y_step).max(y_step);
        let at = |(x, y): (f64, f64)| {
            (
                LEFT + x / x_max * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - (y / y_max).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM),
            )
        };
        let mut text = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(&self.title)
        );
        for n in 0..=(y_max / y_step).round() as usize {
            let value = n as f64 * y_step;
            let (_, y) = at((0.0, value));
            let _ = write!(
                text,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 5.0,
                y + 4.0,
                number(value)
            );
        }
        for n in 0..=(x_max / x_step + 1e-9).floor() as usize {
            let value = n as f64 * x_step;
            let (x, _) = at((value, 0.0));
            let _ = write!(
                text,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 15.0,
                number(value)
            );
        }
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><text x=\"2\" y=\"12\">{}</text>",
            WIDTH - RIGHT,
            HEIGHT - 3.0,
            escape(self.x),
            escape(self.y)
        );
        // Areas are drawn from the highest to the lowest: each covers the lower part of the one before.
        let order: Box<dyn Iterator<Item = &Series>> = match self.style {
            Style::Stack => Box::new(drawn.iter().rev()),
            _ => Box::new(drawn.iter()),
        };
        for series in order {
            self.draw(series, &at, &mut text);
        }
        text.push_str("</svg>");
        text
    }

    fn draw(&self, series: &Series, at: &dyn Fn((f64, f64)) -> (f64, f64), text: &mut String) {
        let every = series.points.len().div_ceil(POINTS_LIMIT).max(1);
        let mut path = String::new();
        let mut last_y = None;
        for point in series.points.iter().step_by(every) {
            let (x, y) = at(*point);
            let _ = match last_y {
                None => write!(path, "M{x:.1} {y:.1}"),
                Some(before) if self.style == Style::Step => {
                    write!(path, "L{x:.1} {before:.1}L{x:.1} {y:.1}")
                }
                Some(_) => write!(path, "L{x:.1} {y:.1}"),
            };
            last_y = Some(y);
        }
        let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else {
            return;
        };
        let dashed = if series.dashed { " dashed" } else { "" };
        if self.style == Style::Stack {
            let (from, floor) = at((first.0, 0.0));
            let (to, _) = at((last.0, 0.0));
            let _ = write!(
                text,
                "<path class=\"area f{}\" d=\"{path}L{to:.1} {floor:.1}L{from:.1} {floor:.1}Z\"/>",
                series.colour
            );
        } else {
            let _ = write!(
                text,
                "<path class=\"line c{}{dashed}\" d=\"{path}\"/>",
                series.colour
            );
        }
        if self.style == Style::Points {
            for point in &series.points {
                let (x, y) = at(*point);
                let _ = write!(
                    text,
                    "<circle class=\"f{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>",
                    series.colour
                );
            }
        }
    }
}

/// Each series plus the sum of those before it. All must have the same x values.
fn stack(series: &[Series]) -> Vec<Series> {
    let mut below: Vec<f64> = Vec::new();
    let mut stacked = Vec::new();
    for of in series {
        below.resize(below.len().max(of.points.len()), 0.0);
        let points = of.points.iter().zip(&mut below).map(|((x, y), below)| {
            *below += y;
            (*x, *below)
        });
        stacked.push(Series {
            points: points.collect(),
            ..of.clone()
        });
    }
    stacked
}

/// The distance of ticks: 1, 2 or 5 times a power of ten, for about [`TICKS`] ticks.
fn tick(most: f64) -> f64 {
    if !(most.is_finite() && most > 0.0) {
        return 1.0;
    }
    let rough = most / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * power >= rough);
    factor.unwrap_or(10.0) * power
}

fn number(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e3.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // At most three decimal places, without trailing zeros.
    let text = format!("{scaled:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(style: Style, series: Vec<Series>) -> Chart {
        Chart {
            title: "a <b> & c".into(),
            x: "s",
            y: "packets/s",
            style,
            series,
        }
    }

    #[test]
    fn every_series_is_drawn_within_the_picture() {
        let series = vec![
            Series::new("one", 0, vec![(0.0, 1.0), (1.0, 7_300.0), (9.0, 2.0)]),
            Series::new("two", 11, vec![(0.0, 3.0), (1.0, 4.0), (9.0, 5.0)]).dashed(),
        ];
        for style in [Style::Line, Style::Step, Style::Stack, Style::Points] {
            let text = chart(style, series.clone()).figure();
            assert_eq!(text.matches("<path").count(), 2, "{style:?}");
            assert!(text.contains("a &lt;b&gt; &amp; c") && !text.contains("<b>"));
            assert!(
                text.contains(">8k<"),
                "the axis ends above the highest value: {text}"
            );
            for path in text
                .split(" d=\"")
                .skip(1)
                .filter_map(|rest| rest.split('"').next())
            {
                let numbers = path
                    .split(['M', 'L', ' ', 'Z'])
                    .filter_map(|n| n.parse::<f64>().ok());
                for n in numbers {
                    assert!((0.0..=WIDTH).contains(&n), "{n} in {path}");
                }
            }
        }
    }

    #[test]
    fn areas_stand_on_each_other() {
        let series = [
            Series::new("a", 0, vec![(0.0, 1.0), (1.0, 2.0)]),
            Series::new("b", 1, vec![(0.0, 10.0), (1.0, 20.0)]),
        ];
        assert_eq!(stack(&series)[1].points, [(0.0, 11.0), (1.0, 22.0)]);
    }

    #[test]
    fn nothing_to_draw_is_no_trouble() {
        for style in [Style::Line, Style::Stack] {
            assert!(
                chart(style, vec![Series::new("none", 0, Vec::new())])
                    .figure()
                    .contains("<svg")
            );
            assert!(chart(style, Vec::new()).figure().contains("</svg>"));
        }
    }

    #[test]
    fn axes_have_round_figures() {
        for (most, step) in [
            (0.0, 1.0),
            (1.0, 0.2),
            (8.0, 2.0),
            (32.0, 10.0),
            (55.0, 20.0),
            (42_000.0, 10_000.0),
        ] {
            assert!((tick(most) - step).abs() < 1e-9, "{most}: {}", tick(most));
        }
        for (value, text) in [(0.0, "0"), (0.25, "0.25"), (1500.0, "1.5k"), (2e6, "2M")] {
            assert_eq!(number(value), text);
        }
    }
}
