//! Renders a status as text in the format of OpenMetrics 1.0.

use std::fmt::Error;

use cgpu_client::message::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{self, Registry};

use super::families::{Family, HAMI, Kind, Labels, OURS, Source, Unit};
use super::own::Usage;

pub(super) const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the text. None: the encoder failed, which would be a defect in it.
pub(super) fn text(status: &Status, own: &Usage, hami: bool) -> Option<String> {
    let of = Source { status, own };
    let mut registry = Registry::default();
    let all = OURS.iter().chain(if hami { HAMI } else { &[] });
    registry.register_collector(Box::new(Samples {
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
struct Samples {
    rows: Vec<(Family, Vec<(Labels, f64)>)>,
}

impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samples").field("families", &self.rows.len()).finish()
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        // A family without samples is left out: the host has no such thing.
        for (family, samples) in self.rows.iter().filter(|(_, samples)| !samples.is_empty()) {
            let (unit, kind) = (unit(family.unit), metric_type(family.kind));
            // The encoder adds a full stop.
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

fn unit(unit: Unit) -> Option<registry::Unit> {
    match unit {
        Unit::None => None,
        Unit::Bytes => Some(registry::Unit::Bytes),
        Unit::Seconds => Some(registry::Unit::Seconds),
        Unit::Ratio => Some(registry::Unit::Other("ratio".into())),
        Unit::Celsius => Some(registry::Unit::Celsius),
        Unit::Watts => Some(registry::Unit::Other("watts".into())),
        Unit::Hertz => Some(registry::Unit::Other("hertz".into())),
    }
}

fn metric_type(kind: Kind) -> MetricType {
    match kind {
        Kind::Gauge => MetricType::Gauge,
        Kind::Counter => MetricType::Counter,
        Kind::Info => MetricType::Info,
    }
}
