//! Units of `aliyun.com/gpu-mem`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A unit of memory, chosen for a whole node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// 1024 MiB.
    #[default]
    #[serde(rename = "GiB")]
    Gib,
    /// 1 MiB.
    #[serde(rename = "MiB")]
    Mib,
    /// 128 MiB.
    #[serde(rename = "128MiB")]
    Mib128,
}

impl Unit {
    /// Every unit.
    pub const ALL: [Self; 3] = [Self::Gib, Self::Mib, Self::Mib128];

    /// Returns the size in MiB.
    #[must_use]
    pub const fn mib(self) -> u64 {
        match self {
            Self::Gib => 1024,
            Self::Mib => 1,
            Self::Mib128 => 128,
        }
    }

    /// Returns the name, as settings and annotations have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gib => "GiB",
            Self::Mib => "MiB",
            Self::Mib128 => "128MiB",
        }
    }

    /// Returns the unit of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }

    /// Returns the number of whole units in `mib` MiB: 14 GiB for a T4 of 15109 MiB.
    #[must_use]
    pub const fn units_of(self, mib: u64) -> u64 {
        mib / self.mib()
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_whole_units() {
        assert_eq!(Unit::Gib.units_of(15109), 14);
        assert_eq!(Unit::Gib.units_of(16130), 15);
        assert_eq!(Unit::Mib128.units_of(81920), 640);
        assert_eq!(Unit::Mib.units_of(23028), 23028);
        for unit in Unit::ALL {
            assert_eq!(Unit::named(unit.name()), Some(unit));
        }
        assert_eq!(Unit::named("GB"), None);
    }
}
