//! The figures: one table of keys, what each measures and its goal; and what one run measured.

use serde_json::{Map, Value};

/// When a measured value meets its goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// At most this many times the figure of that key, taken in the same run.
    TimesOf(f64, &'static str),
    /// At most this much more than the figure of that key.
    PlusOf(f64, &'static str),
    /// Recorded, so that a rise is seen.
    Recorded,
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Figure {
    /// The name under which it is printed and asked for.
    pub(crate) key: &'static str,
    /// What is measured, for people.
    pub(crate) what: &'static str,
    /// The goal.
    pub(crate) goal: Goal,
}

const fn figure(key: &'static str, what: &'static str, goal: Goal) -> Figure {
    Figure { key, what, goal }
}

/// Every figure this program measures.
pub(crate) const FIGURES: &[Figure] = &[
    figure("launch_open_added_ns", "added to cuLaunchKernel, uncontended", Goal::AtMost(2.0)),
    figure("launch_turn_added_ns", "the same, contended and in one's own turn, p50", Goal::AtMost(10.0)),
    figure("launch_turn_added_p99_ns", "p99 of it", Goal::AtMost(200.0)),
    figure("launch_threads_scaling", "2 threads over 1, with the shim over without", Goal::AtLeast(0.95)),
    figure("memcpy_added_ns", "added to cuMemcpyHtoDAsync", Goal::AtMost(2.0)),
    figure("alloc_free_added_ns", "added to a cuMemAlloc + cuMemFree pair, one live", Goal::AtMost(60.0)),
    figure(
        "alloc_free_added_ns_live10k",
        "with 10,000 live, last in first out",
        Goal::TimesOf(1.2, "alloc_free_added_ns"),
    ),
    figure(
        "alloc_free_added_ns_live1m",
        "with 1,000,000 live, last in first out",
        Goal::TimesOf(1.2, "alloc_free_added_ns"),
    ),
    figure(
        "alloc_free_added_ns_live1m_random",
        "with 1,000,000 live, freed at random",
        Goal::PlusOf(200.0, "alloc_free_added_ns"),
    ),
    figure(
        "alloc_free_added_cpu_ns_procs8",
        "8 processes of one container at once, CPU per pair",
        Goal::AtMost(150.0),
    ),
    figure("dlsym_added_ns", "added to dlsym: another's name, a driver name not hooked", Goal::AtMost(10.0)),
    figure("getproc_added_ns", "added to cuGetProcAddress", Goal::AtMost(100.0)),
    figure("launch_instructions", "instructions added to a launch (callgrind)", Goal::Recorded),
    figure("dlsym_instructions", "instructions added to a dlsym (callgrind)", Goal::Recorded),
];

/// The row of `key`.
pub(crate) fn find(key: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.key == key)
}

/// What one run measured, in the order of measuring.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    values: Vec<(&'static Figure, f64)>,
}

impl Measured {
    /// Takes one value down. Unknown keys are a mistake of the program and are refused loudly.
    ///
    /// # Panics
    ///
    /// When `key` is not in [`FIGURES`].
    pub(crate) fn record(&mut self, key: &str, value: f64) {
        let figure = find(key).unwrap_or_else(|| panic!("{key} is not a figure"));
        eprintln!("  {key:<36} {value:>10.2}   {}", self.verdict(figure, value));
        self.values.push((figure, value));
    }

    /// The value of `key`, if measured.
    pub(crate) fn value(&self, key: &str) -> Option<f64> {
        self.values.iter().find(|(figure, _)| figure.key == key).map(|(_, value)| *value)
    }

    /// Whether `value` meets the goal, in words.
    fn verdict(&self, figure: &Figure, value: f64) -> String {
        let against = |limit: f64, met: bool, sign: &str| {
            format!("goal {sign} {limit:.2}: {}", if met { "met" } else { "MISSED" })
        };
        match figure.goal {
            Goal::AtMost(limit) => against(limit, value <= limit, "<="),
            Goal::AtLeast(limit) => against(limit, value >= limit, ">="),
            Goal::TimesOf(factor, base) => match self.value(base) {
                Some(base) => against(base * factor, value <= base * factor, "<="),
                None => format!("goal: {factor} x {base}, which was not measured"),
            },
            Goal::PlusOf(more, base) => match self.value(base) {
                Some(base) => against(base + more, value <= base + more, "<="),
                None => format!("goal: {base} + {more}, which was not measured"),
            },
            Goal::Recorded => "recorded".to_owned(),
        }
    }

    /// One flat object: the figures by key.
    pub(crate) fn json(&self) -> Map<String, Value> {
        self.values
            .iter()
            .map(|(figure, value)| (figure.key.to_owned(), Value::from((value * 1000.0).round() / 1000.0)))
            .collect()
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for (figure, value) in &self.values {
            text += &format!(
                "{:<36} {value:>10.2}   {:<28} {}\n",
                figure.key,
                self.verdict(figure, *value),
                figure.what
            );
        }
        text
    }
}
