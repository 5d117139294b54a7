//! The record of a prepared claim: the node's checkpoint, one file for each claim.
//!
//! It has a version. A record of another one, or with anything that is not understood, is refused:
//! what it holds would not be known.

use cgpu_kubernetes_core::refusal::Refusal;
use serde::{Deserialize, Serialize};

use crate::allocation::{NodeClaim, Share};

/// Version of a record without a resized share, which earlier releases read, too.
const VERSION: u32 = 1;
/// Version of a record with one, and the newest that is read.
const RESIZED_VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    claim: NodeClaim,
}

/// The version of any record.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Returns the text of a claim's record.
#[must_use]
pub fn write(claim: &NodeClaim) -> String {
    let is_resized = claim.shares.iter().any(Share::is_resized);
    let version = if is_resized { RESIZED_VERSION } else { VERSION };
    let record = Record { version, claim: claim.clone() };
    // Serializing plain fields cannot fail.
    serde_json::to_string(&record).unwrap_or_default() + "\n"
}

/// Reads the record of the claim `uid`.
///
/// # Errors
/// It has another version, is of another claim, or is not understood.
pub fn read(uid: &str, text: &str) -> Result<NodeClaim, Refusal> {
    let invalid = |error: serde_json::Error| Refusal::new(format!("it is invalid: {error}"));
    let Versioned { version } = serde_json::from_str(text).map_err(invalid)?;
    if !(VERSION..=RESIZED_VERSION).contains(&version) {
        return Err(Refusal::new(format!(
            "it has version {version}, expected at most {RESIZED_VERSION}: install the release \
             that wrote it, or drain the node and remove it"
        )));
    }
    let Record { claim, .. } = serde_json::from_str(text).map_err(invalid)?;
    if claim.uid != uid {
        return Err(Refusal::new(format!("it is of claim {}, expected {uid}", claim.uid)));
    }
    let is_own = |name: &str| {
        let position = name.strip_prefix(uid).and_then(|name| name.strip_prefix('-'));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        position.is_some_and(|position| !position.is_empty() && is_digits(position))
    };
    if !claim.shares.iter().all(|share| is_own(&share.name)) {
        return Err(Refusal::new("it has a share of another claim"));
    }
    for share in &claim.shares {
        share.limits()?;
    }
    Ok(claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{claim, pool, result};
    use crate::resize;
    use serde_json::{Value, json};

    fn recorded() -> NodeClaim {
        let mut admin = result("gpu-1", "1Gi", 1);
        admin["adminAccess"] = true.into();
        admin["shareID"] = Value::Null;
        let results = json!([result("gpu-0", "2Gi", 3), admin]);
        NodeClaim::of(&claim(&results, &Value::Null), &pool()).unwrap()
    }

    #[test]
    fn record_is_read_back() {
        let text = write(&recorded());
        assert_eq!(read("u1", &text), Ok(recorded()));
        // The format: a change of it needs another version.
        assert_eq!(
            text,
            "{\"version\":1,\"claim\":{\"namespace\":\"test\",\"name\":\"c\",\"uid\":\"u1\",\
             \"shares\":[{\"name\":\"u1-0\",\"request\":\"main\",\"device\":\"gpu-0\",\
             \"shareId\":\"s\",\"gpu\":\"GPU-00000000-0000-0000-0000-000000000000\",\
             \"access\":{\"limited\":{\"capacity\":{\"memory\":2147483648,\"weight\":3,\
             \"cores\":0},\"highPriority\":false}}},{\"name\":\"u1-1\",\"request\":\"main\",\
             \"device\":\"gpu-1\",\"gpu\":\"GPU-10101010-1010-1010-1010-101010101010\",\
             \"access\":\"admin\"}]}}\n"
        );
    }

    #[test]
    fn resized_record_has_its_own_version() {
        let resized = resize::resized(&recorded(), Some("memory=1Gi,weight=2")).unwrap();
        let text = write(&resized);
        assert_eq!(read("u1", &text), Ok(resized));
        let field = "\"resized\":{\"memory\":1073741824,\"weight\":2,\"cores\":0}";
        assert!(text.starts_with("{\"version\":2") && text.contains(field), "{text}");
        let more = text.replacen("\"weight\":2", "\"weight\":4", 1);
        assert!(read("u1", &more).unwrap_err().to_string().contains("more than it consumes"));
    }

    #[test]
    fn record_that_is_not_understood_is_refused() {
        let text = write(&recorded());
        let refused = |text: &str| read("u1", text).unwrap_err().to_string();
        for at in 0..text.len() - 1 {
            assert!(refused(&text[..at]).starts_with("it is invalid"), "cut at {at}");
        }
        let with = |from: &str, to: &str| refused(&text.replacen(from, to, 1));
        assert!(
            with("\"version\":1", "\"version\":3").contains("has version 3, expected at most 2")
        );
        assert!(with("\"name\":\"c\"", "\"name\":\"c\",\"x\":1").contains("unknown field"));
        assert!(with("\"uid\":\"u1\"", "\"uid\":\"u2\"").contains("is of claim u2"));
        assert!(with("\"u1-1\"", "\"u2-1\"").contains("a share of another claim"));
        assert!(with("\"u1-1\"", "\"u1-1/../x\"").contains("a share of another claim"));
        assert!(with("\"memory\":2147483648", "\"memory\":0").contains("the share u1-0"));
        assert!(with("\"weight\":3", "\"weight\":26").contains("the share u1-0"));
        assert!(read("u2", &text).is_err());
    }
}
