//! A drawing of curves.

use std::fmt::Write as _;

use crate::memory::Curve;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 60.0;
const COLOURS: [&str; 3] = ["#0072b2", "#d55e00", "#009e73"];

/// Memory over messages, one line for each backend.
pub(crate) fn svg(curves: &[(&str, Curve)]) -> String {
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let most_messages = points().map(|(messages, _)| *messages).max().unwrap_or(1) as f64;
    let most_memory = points().map(|(_, memory)| *memory).fold(1.0, f64::max) * 1.1;
    let x = |messages: u64| MARGIN + messages as f64 / most_messages * (WIDTH - 2.0 * MARGIN);
    let y = |memory: f64| HEIGHT - MARGIN - memory / most_memory * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let (left, right, bottom) = (MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN);
    for step in 0..=4 {
        let memory = most_memory * f64::from(step) / 4.0;
        let height = y(memory);
        writeln!(svg, "<path d=\"M{left} {height:.1}H{right}\" stroke=\"#ddd\"/>").unwrap();
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{height:.1}\" text-anchor=\"end\">{memory:.0}</text>",
            left - 6.0
        )
        .unwrap();
    }
    for (n, (name, curve)) in curves.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let points: Vec<_> =
            curve.iter().map(|(messages, memory)| format!("{:.1},{:.1}", x(*messages), y(*memory))).collect();
        let points = points.join(" ");
        writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>")
            .unwrap();
        let place = left + 100.0 * n as f64;
        writeln!(svg, "<text x=\"{place:.0}\" y=\"30\" fill=\"{colour}\">{name}</text>").unwrap();
    }
    let (middle, below) = (WIDTH / 2.0, bottom + 30.0);
    let caption = format!("MiB of the process over {most_messages:.0} messages");
    writeln!(svg, "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{caption}</text>\n</svg>")
        .unwrap();
    svg
}
