//! A drawing of the figures: charts below each other.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 5] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#555555"];
const BINS: usize = 48;

/// One chart.
pub(crate) enum Chart {
    /// Curves over the same places of the x axis, which stand at the same distance.
    Curves { title: String, places: Vec<String>, curves: Vec<(String, Vec<f64>)> },
    /// How often a value was found. What is beyond `most` is counted at `most`.
    Histogram { title: String, most: f64, aim: Option<f64>, samples: Vec<(String, Vec<f64>)> },
}

fn height(value: f64, most: f64) -> f64 {
    HEIGHT - BOTTOM - (value / most).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>")
        .unwrap();
}

fn frame(svg: &mut String, title: &str, names: &[&str], most: f64) {
    text(svg, LEFT, 20.0, "start", "black", title);
    let mut x = LEFT;
    for (at, name) in names.iter().enumerate() {
        text(svg, x, 42.0, "start", COLOURS[at % COLOURS.len()], name);
        x += 8.0 * name.chars().count() as f64 + 16.0;
    }
    for step in 0..=4 {
        let value = most * f64::from(step) / 4.0;
        let y = height(value, most);
        writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#ddd\"/>", WIDTH - RIGHT).unwrap();
        text(svg, LEFT - 6.0, y + 4.0, "end", "black", &format!("{value:.0}"));
    }
}

fn curves(svg: &mut String, title: &str, places: &[String], curves: &[(String, Vec<f64>)]) {
    let most = curves.iter().flat_map(|(_, values)| values).copied().fold(1.0, f64::max) * 1.05;
    let names: Vec<_> = curves.iter().map(|(name, _)| name.as_str()).collect();
    frame(svg, title, &names, most);
    let room = WIDTH - LEFT - RIGHT - 40.0;
    let x = |at: usize| LEFT + 20.0 + room * at as f64 / (places.len().max(2) - 1) as f64;
    for (at, place) in places.iter().enumerate() {
        text(svg, x(at), HEIGHT - BOTTOM + 20.0, "middle", "black", place);
    }
    for (number, (_, values)) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<_> = values
            .iter()
            .enumerate()
            .map(|(at, value)| format!("{:.1},{:.1}", x(at), height(*value, most)))
            .collect();
        let points = points.join(" ");
        writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>")
            .unwrap();
    }
}

fn histogram(svg: &mut String, title: &str, most: f64, aim: Option<f64>, samples: &[(String, Vec<f64>)]) {
    let bins: Vec<_> = samples.iter().map(|(_, samples)| shares(samples, most)).collect();
    let highest = bins.iter().flatten().copied().fold(1.0, f64::max);
    let names: Vec<_> = samples.iter().map(|(name, _)| name.as_str()).collect();
    frame(svg, title, &names, highest);
    let x = |value: f64| LEFT + value / most * (WIDTH - LEFT - RIGHT);
    for step in 0..=6 {
        let value = most * f64::from(step) / 6.0;
        text(svg, x(value), HEIGHT - BOTTOM + 20.0, "middle", "black", &format!("{value:.0}"));
    }
    for (number, shares) in bins.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let mut path = format!("M{:.1} {:.1}", x(0.0), height(0.0, highest));
        for (bin, share) in shares.iter().enumerate() {
            let right = x(most * (bin + 1) as f64 / BINS as f64);
            write!(path, "V{:.1}H{right:.1}", height(*share, highest)).unwrap();
        }
        write!(path, "V{:.1}", height(0.0, highest)).unwrap();
        writeln!(svg, "<path d=\"{path}\" fill=\"{colour}\" fill-opacity=\"0.2\" stroke=\"{colour}\"/>")
            .unwrap();
    }
    if let Some(aim) = aim {
        let (x, bottom) = (x(aim), HEIGHT - BOTTOM);
        writeln!(svg, "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#d00\" stroke-dasharray=\"4\"/>").unwrap();
        text(svg, x - 4.0, TOP + 12.0, "end", "#d00", "aim");
    }
}

/// The percentage of the samples in each bin.
fn shares(samples: &[f64], most: f64) -> Vec<f64> {
    let mut shares = vec![0.0; BINS];
    for sample in samples {
        let bin = (sample / most * BINS as f64) as usize;
        shares[bin.min(BINS - 1)] += 100.0 / samples.len() as f64;
    }
    shares
}

pub(crate) fn svg(charts: &[Chart]) -> String {
    let all = HEIGHT * charts.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {all}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (at, chart) in charts.iter().enumerate() {
        writeln!(svg, "<g transform=\"translate(0 {})\">", HEIGHT * at as f64).unwrap();
        match chart {
            Chart::Curves { title, places, curves: all } => curves(&mut svg, title, places, all),
            Chart::Histogram { title, most, aim, samples } => {
                histogram(&mut svg, title, *most, *aim, samples);
            }
        }
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}
