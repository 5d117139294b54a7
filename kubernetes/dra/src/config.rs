//! Configuration of claims and classes: decoded strictly, combined by precedence.

use cgpu_kubernetes_core::refusal::Refusal;
use serde::Deserialize;
use serde::de::value::MapDeserializer;

use crate::DRIVER;
use crate::claim::{Configuration, Parameters};

/// API version of the parameters.
pub const API_VERSION: &str = "cgpu.dev/v1alpha1";
/// Kind of the parameters.
pub const KIND: &str = "SliceConfig";

/// Parameters of our driver, as they are written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SliceConfig {
    api_version: String,
    kind: String,
    high_priority: Option<bool>,
}

/// Settings of a share beside its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether its container has high priority.
    pub high_priority: bool,
}

/// The order in which entries apply: a later one replaces fields of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    from_claim: bool,
    specificity: Specificity,
    position: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Specificity {
    /// No requests are named: all.
    All,
    /// The request, with all its alternatives.
    Request,
    /// One alternative of a request.
    Alternative,
}

/// Returns the request that containers name: `main` of `main/sub`.
#[must_use]
pub fn base_request(request: &str) -> &str {
    request.split('/').next().unwrap_or(request)
}

/// Combines the entries of our driver for a request (`main` or `main/sub`). All our entries are
/// decoded, also those for other requests: a misspelt one is refused wherever it is.
///
/// # Errors
/// An entry is not understood.
pub fn settings(entries: &[Configuration], request: &str) -> Result<Settings, Refusal> {
    let mut applicable = Vec::new();
    for (position, entry) in entries.iter().enumerate() {
        let Some(opaque) = entry.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER) else {
            continue;
        };
        let refuse = |why: &str| {
            Refusal::new(format!(
                "the configuration {} of {DRIVER} is invalid: {why}",
                position + 1
            ))
        };
        let config = decode(&opaque.parameters).map_err(|why| refuse(&why))?;
        let from_claim = match entry.source.as_str() {
            "FromClaim" => true,
            "FromClass" => false,
            _ => return Err(refuse("its source is neither FromClass nor FromClaim")),
        };
        if let Some(specificity) = specificity(&entry.requests, request) {
            applicable.push((Precedence { from_claim, specificity, position }, config));
        }
    }
    applicable.sort_by_key(|(precedence, _)| *precedence);
    let mut settings = Settings::default();
    for (_, config) in applicable {
        settings.high_priority = config.high_priority.unwrap_or(settings.high_priority);
    }
    Ok(settings)
}

fn decode(parameters: &Parameters) -> Result<SliceConfig, String> {
    let fields = parameters.0.iter().map(|(name, value)| (name.as_str(), value.clone()));
    let config = SliceConfig::deserialize(MapDeserializer::new(fields))
        .map_err(|error: serde_json::Error| error.to_string())?;
    if (config.api_version.as_str(), config.kind.as_str()) != (API_VERSION, KIND) {
        return Err(format!(
            "it is {}/{}, expected {API_VERSION}/{KIND}",
            config.api_version, config.kind
        ));
    }
    Ok(config)
}

fn specificity(requests: &[String], request: &str) -> Option<Specificity> {
    let base = base_request(request);
    if requests.is_empty() {
        Some(Specificity::All)
    } else if base != request && requests.iter().any(|named| named == request) {
        Some(Specificity::Alternative)
    } else {
        requests.iter().any(|named| named == base).then_some(Specificity::Request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::claim;
    use serde_json::{Value, json};

    fn entry(source: &str, requests: &[&str], high: Option<bool>) -> Value {
        let mut parameters = json!({"apiVersion": "cgpu.dev/v1alpha1", "kind": "SliceConfig"});
        if let Some(high) = high {
            parameters["highPriority"] = high.into();
        }
        json!({"source": source, "requests": requests,
            "opaque": {"driver": "gpu.cgpu.dev", "parameters": parameters}})
    }

    fn high(entries: &[Value], request: &str) -> Result<bool, String> {
        let entries =
            claim(&json!([]), &json!(entries)).status.allocation.unwrap_or_default().devices.config;
        let settings = settings(&entries, request);
        settings.map(|settings| settings.high_priority).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn most_specific_configuration_of_the_claim_wins() {
        let (on, off) = (Some(true), Some(false));
        for (entries, request, expected) in [
            (&[][..], "main", false),
            (&[entry("FromClass", &[], on)], "main", true),
            (&[entry("FromClass", &[], on)], "main/sub", true),
            // The claim has precedence, wherever it is and however general.
            (&[entry("FromClass", &["main"], on), entry("FromClaim", &[], off)], "main", false),
            (&[entry("FromClaim", &[], off), entry("FromClass", &["main"], on)], "main", false),
            // A field that is absent leaves the class's value.
            (&[entry("FromClass", &[], on), entry("FromClaim", &["main"], None)], "main", true),
            // The most specific one.
            (&[entry("FromClaim", &["main"], on), entry("FromClaim", &[], off)], "main", true),
            (
                &[entry("FromClaim", &["main/a"], on), entry("FromClaim", &["main"], off)],
                "main/a",
                true,
            ),
            (
                &[entry("FromClaim", &["main/a"], on), entry("FromClaim", &["main"], off)],
                "main/b",
                false,
            ),
            (&[entry("FromClaim", &["other", "main"], on)], "main", true),
            (&[entry("FromClaim", &["other"], on)], "main", false),
            (&[entry("FromClaim", &["main/a"], on)], "main", false),
            // The last of equal ones.
            (&[entry("FromClaim", &[], on), entry("FromClaim", &[], off)], "main", false),
        ] {
            assert_eq!(high(entries, request), Ok(expected), "{entries:?} {request}");
        }
    }

    #[test]
    fn configuration_that_is_not_understood_is_refused() {
        let with = |text: &str| {
            let entry: Value = serde_json::from_str(&format!(
                "{{\"source\":\"FromClaim\",\"opaque\":{{\"driver\":\"gpu.cgpu.dev\",\
                 \"parameters\":{text}}}}}"
            ))
            .unwrap();
            high(&[entry], "main")
        };
        let header = "\"apiVersion\":\"cgpu.dev/v1alpha1\",\"kind\":\"SliceConfig\"";
        assert_eq!(with(&format!("{{{header}}}")), Ok(false));
        for (parameters, part) in [
            (format!("{{{header},\"highpriority\":true}}"), "unknown field `highpriority`"),
            (format!("{{{header},\"highPriority\":1}}"), "invalid type"),
            (format!("{{{header},\"weight\":3}}"), "unknown field `weight`"),
            ("{}".into(), "missing field `apiVersion`"),
            (
                "{\"apiVersion\":\"cgpu.dev/v2\",\"kind\":\"SliceConfig\"}".into(),
                "expected cgpu.dev/v1alpha1/SliceConfig",
            ),
        ] {
            let refusal = with(&parameters).unwrap_err();
            assert!(refusal.contains(part), "{refusal}");
            assert!(refusal.starts_with("the configuration 1 of gpu.cgpu.dev is invalid"));
        }
        let mut other = entry("FromNowhere", &[], None);
        assert!(high(&[other.clone()], "main").unwrap_err().contains("neither FromClass"));
        // Also for another request.
        other["requests"] = json!(["other"]);
        assert!(high(&[other.clone()], "main").is_err());
        // Not of another driver.
        other["opaque"]["driver"] = "x".into();
        assert_eq!(high(&[other], "main"), Ok(false));
    }

    #[test]
    fn field_twice_is_refused() {
        let text = "{\"source\":\"FromClaim\",\"opaque\":{\"driver\":\"gpu.cgpu.dev\",\
            \"parameters\":{\"apiVersion\":\"cgpu.dev/v1alpha1\",\"kind\":\"SliceConfig\",\
            \"highPriority\":true,\"highPriority\":false}}}";
        let entry: Configuration = serde_json::from_str(text).unwrap();
        let refusal = settings(&[entry], "main").unwrap_err().to_string();
        assert!(refusal.contains("duplicate field `highPriority`"), "{refusal}");
    }
}
