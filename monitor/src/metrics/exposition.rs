//! A status as text, in the format of OpenMetrics 1.0.

use std::fmt::Error;

use cgpu_client::message::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as Word};

use super::families::{Family, HAMI, Kind, Labels, OURS, Source, Unit};
use super::own::Usage;

/// The content type of the text.
pub(super) const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text; none when it cannot be written, which would be a defect of the encoder.
pub(super) fn text(status: &Status, own: &Usage, hami: bool) -> Option<String> {
    let of = Source { status, own };
    let mut registry = Registry::default();
    let all = OURS.iter().chain(if hami { HAMI } else { &[] });
    registry.register_collector(Box::new(Picture {
        rows: all.map(|family| (*family, samples(family, of))).collect(),
    }));
    let mut text = String::new();
    text::encode(&mut text, &registry).ok()?;
    Some(text)
}

fn samples(family: &Family, of: Source<'_>) -> Vec<(Labels, f64)> {
    let mut samples = Vec::new();
    (family.read)(of, &mut |labels, value| samples.push((labels, value)));
    samples
}

/// All families with their samples at one time.
struct Picture {
    rows: Vec<(Family, Vec<(Labels, f64)>)>,
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Picture").field("families", &self.rows.len()).finish()
    }
}

impl Collector for Picture {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        // One without samples is left out: there is no such thing here.
        for (family, samples) in self.rows.iter().filter(|(_, samples)| !samples.is_empty()) {
            let (unit, kind) = (word(family.unit), metric_type(family.kind));
            // The encoder sets the full stop.
            let help = family.help.trim_end_matches('.');
            let mut metric =
                encoder.encode_descriptor(family.stem, &format!("{help}."), unit.as_ref(), kind)?;
            for (labels, value) in samples {
                match family.kind {
                    Kind::Gauge => metric.encode_family(labels)?.encode_gauge(value)?,
                    Kind::Counter => metric
                        .encode_family(labels)?
                        .encode_counter::<NoLabelSet, _, f64>(value, None)?,
                    Kind::Info => metric.encode_info(labels)?,
                }
            }
        }
        Ok(())
    }
}

fn word(unit: Unit) -> Option<Word> {
    match unit {
        Unit::None => None,
        Unit::Bytes => Some(Word::Bytes),
        Unit::Seconds => Some(Word::Seconds),
        Unit::Ratio => Some(Word::Other("ratio".into())),
    }
}

fn metric_type(kind: Kind) -> MetricType {
    match kind {
        Kind::Gauge => MetricType::Gauge,
        Kind::Counter => MetricType::Counter,
        Kind::Info => MetricType::Info,
    }
}
