//! The simulated version of the driver: `CGPU_SIM_DRIVER`, and the first driver release with that
//! version of CUDA.
//!
//! Shared by the simulated libcuda and NVML.

use std::sync::LazyLock;

/// The version if `CGPU_SIM_DRIVER` is not set.
const DEFAULT: u32 = 13_000;

/// First releases with each version of CUDA, newest first.
const RELEASES: &[(u32, &str)] = &[
    (13_010, "590.44.01"),
    (13_000, "580.65.06"),
    (12_090, "575.57.08"),
    (12_080, "570.124.06"),
    (12_060, "560.35.03"),
    (12_050, "555.42.06"),
    (12_040, "550.163.01"),
    (12_020, "535.261.03"),
    (12_000, "525.147.05"),
    (11_070, "515.105.01"),
    (11_040, "470.256.02"),
    (11_000, "450.248.02"),
    (10_020, "440.118.02"),
    (0, "418.87.01"),
];

/// The simulated version of CUDA, such as 12040 for 12.4.
pub(crate) static CUDA: LazyLock<u32> = LazyLock::new(|| match std::env::var("CGPU_SIM_DRIVER") {
    Ok(text) if !text.is_empty() => parse(&text).unwrap_or_else(|| {
        eprintln!(
            "cgpu-sim: CGPU_SIM_DRIVER={text}: expected a version such as 12040; playing {DEFAULT}"
        );
        DEFAULT
    }),
    _ => DEFAULT,
});

/// Defines a constructor that removes the symbols that the simulated version does not export.
macro_rules! hide_newer {
    ($rows:expr) => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static HIDE_NEWER: extern "C" fn() = {
            extern "C" fn hide_newer() {
                let absent: std::collections::HashSet<&str> = $rows
                    .iter()
                    .filter(|row| !row.is_exported_by(*crate::version::CUDA))
                    .map(|row| row.symbol)
                    .collect();
                cgpu_sim::symbols::hide(|name| absent.contains(name));
            }
            hide_newer
        };
    };
}
pub(crate) use hide_newer;

/// Returns the first driver release with a version of CUDA.
#[allow(dead_code, reason = "only one of the two libraries uses it")]
pub(crate) fn release(cuda: u32) -> &'static str {
    RELEASES.iter().find(|(first, _)| *first <= cuda).map_or("", |(_, release)| release)
}

fn parse(text: &str) -> Option<u32> {
    text.parse().ok().filter(|version| (10_000..14_000).contains(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_must_have_five_digits() {
        assert_eq!(parse("12040"), Some(12040));
        assert_eq!(parse("10010"), Some(10010));
        for text in ["12.4", "1240", "99999", "-1", "x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_version_has_a_release() {
        assert_eq!(release(12040), "550.163.01");
        assert_eq!(release(12030), "535.261.03");
        assert_eq!(release(10010), "418.87.01");
        assert_eq!(release(13050), "590.44.01");
    }
}
