//! Charts of the measured values.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;

use crate::figure::{FIGURES, Measured};

/// Default cost of a context switch in microseconds.
pub(crate) const USUAL_SWITCH: u32 = 100;

/// Values to draw, collected while the experiments run.
#[derive(Debug)]
pub(crate) struct Gallery {
    /// Folder for the charts, or `None` if no charts are wanted.
    folder: Option<PathBuf>,
    /// Cost of a context switch in microseconds.
    switch: u32,
    shares: Vec<Pair>,
    windows: Vec<Window>,
    gaps: Vec<Pair>,
    seed: Vec<Pair>,
    placements: Vec<Pair>,
    /// Latencies of requests by case, ascending, in seconds.
    latencies: Vec<(&'static str, Vec<f64>)>,
}

/// A measured value beside a set or published one.
#[derive(Debug)]
struct Pair {
    name: String,
    set: f64,
    got: f64,
}

/// A window of a run.
#[derive(Debug)]
struct Window {
    name: &'static str,
    /// Seconds from the start of the run.
    from: f64,
    /// Percent of the set share.
    got: f64,
}

const WIDTH: u32 = 960;
/// Height of a bar in pixels.
const BAR: u32 = 12;
const OURS: RGBColor = RGBColor(38, 110, 190);
const OTHERS: RGBColor = RGBColor(170, 170, 170);
const SECOND: RGBColor = RGBColor(220, 120, 30);

impl Gallery {
    /// Creates a collection whose charts are written to `folder`.
    pub(crate) fn new(folder: Option<PathBuf>, switch: u32) -> Result<Self> {
        if let Some(folder) = &folder {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let (shares, windows, gaps, seed) = Default::default();
        let (placements, latencies) = Default::default();
        Ok(Self { folder, switch, shares, windows, gaps, seed, placements, latencies })
    }

    /// Returns whether charts are wanted.
    pub(crate) fn is_open(&self) -> bool {
        self.folder.is_some()
    }

    /// Returns the path of a chart. A run with another switch cost has it in the name, so that it
    /// does not replace the charts of the default cost.
    fn file(&self, folder: &Path, name: &str) -> PathBuf {
        let usual = self.switch == USUAL_SWITCH;
        folder.join(if usual {
            format!("{name}.svg")
        } else {
            format!("{name}-{}us.svg", self.switch)
        })
    }

    /// Adds a tenant's share, as a fraction.
    pub(crate) fn share(&mut self, key: &str, place: usize, set: f64, got: f64) {
        let name = key.replace("share_error_pct_", "").replace("share_error_", "");
        let name = name.replace("_error", "").replace("_pct", "").replace('_', " ");
        let name = format!("{name} #{}", place + 1);
        self.shares.push(Pair { name, set: 100.0 * set, got: 100.0 * got });
    }

    /// Adds a tenant's share in one window, in percent of the set share.
    pub(crate) fn window(&mut self, name: &'static str, from: f64, got: f64) {
        self.windows.push(Window { name, from, got });
    }

    /// Adds the throughput of a tenant with gaps, relative to running alone, with turns and with
    /// the GPU's own time slicing.
    pub(crate) fn gap(&mut self, gap_us: u32, got: f64, native: f64) {
        self.gaps.push(Pair {
            name: format!("gap {gap_us} us"),
            set: 100.0 * native,
            got: 100.0 * got,
        });
    }

    /// Adds a row of the 1:2 table: the ratio measured here and the document's.
    pub(crate) fn seed(&mut self, name: &str, got: f64, document: f64) {
        self.seed.push(Pair { name: name.to_owned(), set: document, got });
    }

    /// Adds a cluster in which the placement of a pod takes these times in milliseconds: at the
    /// 99th percentile and in the median.
    pub(crate) fn placements(&mut self, name: String, slow_ms: f64, median_ms: f64) {
        self.placements.push(Pair { name, set: 1e3 / slow_ms, got: 1e3 / median_ms });
    }

    /// Adds the latencies of a run's requests, in seconds.
    pub(crate) fn latencies(&mut self, case: &'static str, mut latencies: Vec<f64>) {
        latencies.sort_by(f64::total_cmp);
        self.latencies.push((case, latencies));
    }

    /// Draws from a journal which process had the GPU at what time, in an interval in milliseconds
    /// after the first work. `command` is `cgpu-sim`.
    pub(crate) fn trace(
        &self,
        command: &mut Command,
        journal: &Path,
        [from, to]: [u32; 2],
        name: &str,
    ) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        command.arg("trace").arg(journal).args([
            "--from",
            &from.to_string(),
            "--to",
            &to.to_string(),
        ]);
        let output =
            command.arg("--svg").arg(self.file(folder, name)).output().context("cgpu-sim trace")?;
        ensure!(
            output.status.success(),
            "cgpu-sim trace: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Writes the charts.
    pub(crate) fn write(&self, measured: &Measured) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let (errors, allocations, summary) =
            (errors(measured), allocations(measured), summary(measured));
        let switch = format!("; a switch costs {} us", self.switch);
        let charts = [
            (
                "summary",
                "",
                "In percent, less is better",
                ["published by others", "cgpu"],
                &summary,
            ),
            ("errors", &*switch, "Error of a share by load, in percent", ["goal", "got"], &errors),
            (
                "allocations",
                "",
                "Nanoseconds added to cuMemAlloc and cuMemFree, by live allocations",
                ["goal", "got"],
                &allocations,
            ),
            ("shares", &switch, "Shares in percent of the GPU", ["set", "got"], &self.shares),
            (
                "gaps",
                &switch,
                "Throughput of 100 us kernels with host gaps, in percent of that alone",
                ["native slicing", "turns"],
                &self.gaps,
            ),
            (
                "one-to-two",
                &switch,
                "Weights 1:2, images per second of the second over the first",
                ["reference", "here"],
                &self.seed,
            ),
            (
                "placements",
                "",
                "Pods placed in a second, one after another (filter and binding)",
                ["at the 99th percentile's time", "at the median's"],
                &self.placements,
            ),
        ];
        for (file, more, title, names, pairs) in charts {
            if !pairs.is_empty() {
                let path = self.file(folder, file);
                bars(&path, &format!("{title}{more}"), names, pairs)
                    .map_err(|error| anyhow!("{}: {error}", path.display()))?;
            }
        }
        if !self.windows.is_empty() {
            let path = self.file(folder, "windows");
            self.lines(&path).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        }
        if !self.latencies.is_empty() {
            let path = self.file(folder, "priority");
            let title = format!("Times of requests of 6.4 ms at high priority{switch}");
            quantiles(&path, &title, &self.latencies)
                .map_err(|error| anyhow!("{}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Draws the shares by second, in percent of the set share.
    fn lines(&self, path: &Path) -> Drawn {
        let last = self.windows.iter().map(|window| window.from).fold(0.0, f64::max) + 1.0;
        let off =
            self.windows.iter().map(|window| (window.got - 100.0).abs()).fold(4.0, f64::max).ceil()
                + 1.0;
        let title = format!(
            "Windows of a second: percent of the share as set; a switch costs {} us",
            self.switch
        );
        let area = SVGBackend::new(path, (WIDTH, 360)).into_drawing_area();
        let mut chart = curves(&area, &title, [0.0..last, 100.0 - off..100.0 + off])?;
        chart
            .configure_mesh()
            .x_desc("seconds")
            .y_desc("percent of the share as set")
            .light_line_style(WHITE)
            .x_labels(12)
            .y_label_formatter(&|value| format!("{value:.0}"))
            .x_label_formatter(&|value| {
                // No labels between whole seconds.
                if value.fract().abs() < 0.01 { format!("{value:.0}") } else { String::new() }
            })
            .label_style(("sans-serif", 13))
            .draw()?;
        let names: BTreeSet<&str> = self.windows.iter().map(|window| window.name).collect();
        for (name, colour) in names.into_iter().zip([SECOND, OURS].into_iter().cycle()) {
            let points: Vec<(f64, f64)> = self
                .windows
                .iter()
                .filter(|window| window.name == name)
                .map(|window| (window.from + 0.5, window.got))
                .collect();
            curve(&mut chart, name, colour, points.clone())?;
            chart.draw_series(
                points.into_iter().map(|point| Circle::new(point, 3, colour.filled())),
            )?;
        }
        legend(&mut chart, SeriesLabelPosition::MiddleRight)?;
        area.present()?;
        Ok(())
    }
}

/// Returns the errors of shares and their goals.
fn errors(measured: &Measured) -> Vec<Pair> {
    let is_error = |key: &str| key.starts_with("share_error_") || key.starts_with("tenants_");
    let keys = FIGURES.iter().map(|figure| figure.key).filter(|key| is_error(key));
    keys.filter_map(|key| {
        let name = key.replace("share_error_", "").replace("_error", "").replace("pct_", "");
        let name = name.replace("_pct", "").replace('_', " ");
        Some(Pair { name, set: measured.limit(key)?, got: measured.value(key)? })
    })
    .collect()
}

/// Returns what the shim adds to an allocation and its free, and the goals.
fn allocations(measured: &Measured) -> Vec<Pair> {
    let rows = [
        ("1", "alloc_free_added_ns"),
        ("10,000", "alloc_free_added_ns_live10k"),
        ("1,000,000", "alloc_free_added_ns_live1m"),
        ("1,000,000, freed at random", "alloc_free_added_ns_live1m_random"),
    ];
    rows.into_iter()
        .filter_map(|(name, key)| {
            let (set, got) = (measured.limit(key)?, measured.value(key)?);
            Some(Pair { name: name.to_owned(), set, got })
        })
        .collect()
}

/// Published figures of others, with their experiments and sources.
const OTHERS_FIGURES: &str = include_str!("../results/published-by-others.json");

/// Returns a published figure as a number. A range counts with its last number, which is the better
/// one for a ratio such as `1:6-8`.
fn published(others: &Value, place: &str) -> f64 {
    let text = others.pointer(place).and_then(Value::as_str).unwrap_or_default();
    text.rsplit([':', '-']).next().and_then(|last| last.parse().ok()).unwrap_or(f64::NAN)
}

/// Returns what others published of experiments, and ours. `docs/performance.md` has the sources.
fn summary(measured: &Measured) -> Vec<Pair> {
    let others: Value = serde_json::from_str(OTHERS_FIGURES).unwrap_or_default();
    let others = |place: &str| published(&others, place);
    let lost =
        |keys: [&str; 2]| Some(100.0 * (1.0 - measured.value(keys[0])? - measured.value(keys[1])?));
    let rows = [
        (
            "1:2, worst load (cGPU)",
            others("/alibaba_cgpu/error_pct"),
            measured.value("seed_table_error_pct"),
        ),
        (
            "10:90, no waits (HAMi)",
            100.0 * (1.0 - others("/hami/ratio") / 9.0),
            measured.value("hami_2863_error_pct"),
        ),
        (
            "lost at 75:25 (XSched)",
            100.0 * (1.0 - others("/xsched/shares/0") - others("/xsched/shares/1")),
            lost(["xsched_75_of_solo", "xsched_25_of_solo"]),
        ),
        (
            "p99, training (Tally)",
            others("/Tally/p99_added_pct"),
            measured.value("inference_p99_added_pct"),
        ),
    ];
    rows.into_iter()
        .filter_map(|(name, set, got)| Some(Pair { name: name.to_owned(), set, got: got? }))
        .collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Curves<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Begins a chart of curves.
fn curves<'a>(
    area: &Area<'a>,
    title: &str,
    [x, y]: [Range<f64>; 2],
) -> Result<Curves<'a>, Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    Ok(ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(x, y)?)
}

/// Draws a named curve.
fn curve(
    chart: &mut Curves<'_>,
    name: &str,
    colour: RGBColor,
    points: impl IntoIterator<Item = (f64, f64)>,
) -> Drawn {
    chart
        .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    Ok(())
}

/// Draws the names of a chart's curves.
fn legend(chart: &mut Curves<'_>, position: SeriesLabelPosition) -> Drawn {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE)
        .border_style(OTHERS)
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

/// Draws what part of the requests took at most what time.
fn quantiles(path: &Path, title: &str, cases: &[(&'static str, Vec<f64>)]) -> Drawn {
    let all = || cases.iter().flat_map(|(_, latencies)| latencies).map(|seconds| 1e3 * seconds);
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let area = SVGBackend::new(path, (WIDTH, 360)).into_drawing_area();
    let mut chart = curves(&area, title, [0.98 * least..1.02 * most, 0.0..100.0])?;
    chart
        .configure_mesh()
        .x_desc("milliseconds")
        .y_desc("percent of the requests")
        .light_line_style(WHITE)
        .label_style(("sans-serif", 13))
        .draw()?;
    for ((name, latencies), colour) in cases.iter().zip([OTHERS, OURS, SECOND].into_iter().cycle())
    {
        let part = |place: usize| 100.0 * (place + 1) as f64 / latencies.len() as f64;
        let points = latencies.iter().enumerate().map(|(place, at)| (1e3 * at, part(place)));
        curve(&mut chart, name, colour, points)?;
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)?;
    area.present()?;
    Ok(())
}

/// Draws two bars for each pair, the set value above the measured one, with the numbers.
fn bars(path: &Path, title: &str, [grey, blue]: [&str; 2], pairs: &[Pair]) -> Drawn {
    let most = pairs.iter().map(|pair| pair.set.max(pair.got)).fold(0.0, f64::max) * 1.15;
    let rows = pairs.len();
    let area =
        SVGBackend::new(path, (WIDTH, rows as u32 * (2 * BAR + 8) + 130)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .margin_bottom(40)
        .x_label_area_size(30)
        .y_label_area_size(190)
        .build_cartesian_2d(0.0..most, 0.0..rows as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(WHITE)
        .y_labels(0)
        .draw()?;
    let pixels = 2.0 * f64::from(BAR) + 8.0;
    let part = |count: f64| count / pixels;
    for (place, pair) in pairs.iter().enumerate() {
        let top = (rows - place) as f64 - part(4.0);
        let middle = top - part(f64::from(BAR));
        let bottom = middle - part(f64::from(BAR));
        let label = |text: String, at: (f64, f64), anchor: HPos| {
            let style =
                ("sans-serif", 12).into_font().color(&BLACK).pos(Pos::new(anchor, VPos::Center));
            Text::new(text, at, style)
        };
        let digits = if most < 10.0 { 3 } else { 2 };
        for (value, high, low, colour) in
            [(pair.set, top, middle, OTHERS), (pair.got, middle, bottom, OURS)]
        {
            chart.draw_series([Rectangle::new([(0.0, low), (value, high)], colour.filled())])?;
            let text = format!(" {value:.digits$}");
            chart.draw_series([label(text, (value, f64::midpoint(high, low)), HPos::Left)])?;
        }
        let (x, y) = chart.backend_coord(&(0.0, middle));
        let style =
            ("sans-serif", 13).into_font().color(&BLACK).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(pair.name.clone(), (x - 8, y), style))?;
    }
    // Legend below the chart.
    let (_, height) = area.dim_in_pixel();
    let y = height.cast_signed() - 22;
    for (x, name, colour) in [(200, grey, OTHERS), (400, blue, OURS)] {
        area.draw(&Rectangle::new([(x, y - 6), (x + 16, y + 6)], colour.filled()))?;
        let style =
            ("sans-serif", 13).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(name.to_owned(), (x + 24, y), style))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::tests::published_together;

    /// The charts that show values of a run's file; the others show its course, which no file has.
    #[test]
    fn charts_of_the_documents_have_the_values_of_their_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let gallery = Gallery::new(Some(folder.path().to_owned()), USUAL_SWITCH);
        gallery.expect("a gallery").write(&published_together()).expect("charts");
        for name in ["errors.svg", "allocations.svg", "summary.svg"] {
            let shown = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures").join(name);
            let drawn = fs::read_to_string(folder.path().join(name)).expect("a chart");
            let is_shown = fs::read_to_string(&shown).expect("a picture") == drawn;
            assert!(is_shown, "{name} is not of these files: see docs/performance.md, Repeat it");
        }
    }

    #[test]
    fn published_figures_have_a_number() {
        let others: Value = serde_json::from_str(OTHERS_FIGURES).expect("JSON");
        assert_eq!(published(&others, "/hami/ratio"), 8.0);
        assert_eq!(published(&others, "/xsched/shares/0"), 0.71);
        assert!(published(&others, "/xsched/else").is_nan());
    }
}
