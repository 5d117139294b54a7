//! Versions in the form that the API accepts (semver.org 2.0.0).

/// Returns the version of a driver as a semantic one: `535.183.06` is `535.183.6`, `12.8` is
/// `12.8.0`, and further parts follow `+`. Returns `None` for other texts.
#[must_use]
pub fn semantic(text: &str) -> Option<String> {
    /// Maximum length of a version in the API.
    const MAX_LENGTH: usize = 64;
    let mut parts = Vec::new();
    for part in text.trim().split('.') {
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        parts.push(if digits.is_empty() { "0" } else { digits });
    }
    let more = parts.split_off(parts.len().min(3));
    parts.resize(3, "0");
    let mut version = parts.join(".");
    if !more.is_empty() {
        version = format!("{version}+{}", more.join("."));
    }
    (version.len() <= MAX_LENGTH).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_versions_become_semantic() {
        for (text, expected) in [
            ("535.183.06", Some("535.183.6")),
            ("550.54.14", Some("550.54.14")),
            ("580.00", Some("580.0.0")),
            ("12.8", Some("12.8.0")),
            ("13", Some("13.0.0")),
            ("470.82.01.05", Some("470.82.1+5")),
            (" 535.183.06\n", Some("535.183.6")),
            ("0.0.0", Some("0.0.0")),
            ("", None),
            ("535.", None),
            (".5", None),
            ("535.183-beta", None),
            ("v1.2.3", None),
            ("1.2.٣", None),
        ] {
            assert_eq!(semantic(text).as_deref(), expected, "{text:?}");
        }
        assert_eq!(semantic(&"9".repeat(65)), None);
    }
}
