//! The policies: which containers share a GPU, and by which weight.
//!
//! To add one: a variant, its number ([`Policy::HIGHEST`], [`Policy::numbered`],
//! [`Policy::number`]) and its answers to the methods below. `monitor/src/host/device_state.rs`
//! makes a policy from its number and the GPU's settings. What weights cannot express is in
//! `gpu.rs` (turns), `background.rs` (work beside a turn), `rates.rs` and `refill.rs` (credit).
//! `docs/policies.md` describes each policy. A test below lists the files that do not name one.

/// A whole GPU, in the unit of fixed shares: thousandths of a percent.
pub const WHOLE: u64 = 100_000;

/// How a GPU is shared. The numbers are cGPU's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// 0: the same fixed share for every container, even alone; idle shares stay idle.
    Average {
        /// Number of shares of the GPU (`max_inst`).
        slots: u32,
    },
    /// 1: equal shares among the containers that have the GPU open; idle ones are skipped.
    #[default]
    Preemptive,
    /// 2: shares by weight among the containers that were created.
    Weighted {
        /// False: a created but idle container burns its slots, as cGPU documents it. True: others
        /// use them.
        conserving: bool,
    },
    /// 3: a fixed share for each, even alone: its percentage, or its weight of the GPU's slots.
    Fixed {
        /// Number of shares of the GPU (`max_inst`).
        slots: u32,
    },
    /// 4: like 1, but a background tenant may cost the others a tenth more.
    Soft,
    /// 5: no turns; memory is limited, time is shared by the GPU alone.
    Native,
    /// Also 5, while MPS runs the work of several containers at the same time: no turns, not even
    /// for high priority. It is never set.
    Mps,
}

impl Policy {
    /// The greatest number of a policy.
    pub const HIGHEST: u64 = 5;

    /// Returns the policy of a number, or none.
    #[must_use]
    pub fn numbered(number: u32, slots: u32, conserving: bool) -> Option<Self> {
        match number {
            0 => Some(Self::Average { slots }),
            1 => Some(Self::Preemptive),
            2 => Some(Self::Weighted { conserving }),
            3 => Some(Self::Fixed { slots }),
            4 => Some(Self::Soft),
            5 => Some(Self::Native),
            _ => None,
        }
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Average { .. } => 0,
            Self::Preemptive => 1,
            Self::Weighted { .. } => 2,
            Self::Fixed { .. } => 3,
            Self::Soft => 4,
            Self::Native | Self::Mps => 5,
        }
    }

    /// Returns whether a container is one of those that share the GPU.
    #[must_use]
    pub const fn counts(self, presence: Presence) -> bool {
        match self {
            Self::Preemptive | Self::Soft => presence.open,
            Self::Average { .. } | Self::Weighted { .. } | Self::Fixed { .. } => {
                presence.open || presence.created
            }
            Self::Native | Self::Mps => false,
        }
    }

    /// Returns whether containers have turns.
    #[must_use]
    pub const fn has_turns(self) -> bool {
        !matches!(self, Self::Native | Self::Mps)
    }

    /// Returns whether a member keeps its turns even while it is idle.
    #[must_use]
    pub const fn burns(self) -> bool {
        matches!(self, Self::Weighted { conserving: false })
    }

    /// Returns whether an idle share goes to the others, so that a container that computes
    /// occasionally may run in the background of their turns.
    #[must_use]
    pub const fn has_background(self) -> bool {
        matches!(self, Self::Preemptive | Self::Weighted { conserving: true } | Self::Soft)
    }

    /// Returns whether shares are fixed parts of the GPU's time, whatever other containers there
    /// are.
    #[must_use]
    pub const fn is_fixed(self) -> bool {
        matches!(self, Self::Average { .. } | Self::Fixed { .. })
    }

    /// Returns a member's weight under this policy; if shares are fixed, in parts of [`WHOLE`].
    #[must_use]
    pub fn weight(self, entitlement: &Entitlement) -> u64 {
        let slot = |slots: u32| WHOLE / u64::from(slots.max(1));
        let weight = u64::from(entitlement.weight.max(1));
        match self {
            Self::Average { slots } => slot(slots),
            Self::Fixed { slots } => match entitlement.percent {
                Some(percent) => (u64::from(percent) * WHOLE / 100).min(WHOLE),
                None => (slot(slots) * weight).min(WHOLE),
            },
            Self::Weighted { .. } => weight,
            Self::Preemptive | Self::Soft | Self::Native | Self::Mps => 1,
        }
    }

    /// Returns how many of at least two members must be active for turns to be needed.
    #[must_use]
    pub const fn contended_at(self) -> usize {
        if self.burns() { 1 } else { 2 }
    }
}

/// The configured claim of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entitlement {
    /// Its weight; 0: the GPU had none left for it, and it gets no compute.
    pub weight: u32,
    /// Its part of the GPU in percent, for policy 3; none: by its weight.
    pub percent: Option<u32>,
    /// It has high priority.
    pub high: bool,
}

impl Entitlement {
    /// Makes an entitlement of this weight only.
    #[must_use]
    pub const fn of_weight(weight: u32) -> Self {
        Self { weight, percent: None, high: false }
    }
}

/// Whether a container is registered for a GPU, and uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// It was created for this GPU and its registrant lives, whether or not a process uses the GPU.
    pub created: bool,
    /// A living process of it has the GPU open.
    pub open: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_control_tree() {
        for number in 0..9 {
            let policy = Policy::numbered(number, 20, false);
            let is_known = u64::from(number) <= Policy::HIGHEST;
            assert_eq!(policy.is_some(), is_known, "{number}: see Policy::HIGHEST");
            policy.into_iter().for_each(|policy| assert_eq!(policy.number(), number));
        }
    }

    /// The places outside of this crate that name each policy.
    #[test]
    fn every_policy_is_named_in_programs_and_pages() {
        const NAMES: &[&str] = &["fair", "preemptive", "weighted", "fixed", "soft", "native"];
        assert_eq!(NAMES.len() as u64, Policy::HIGHEST + 1, "add the policy's name to NAMES");
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let quoted: Vec<String> = NAMES.iter().map(|name| format!("{name:?}")).collect();
        let quoted = [quoted.join(", ")];
        let range = format!("0 to {}", Policy::HIGHEST);
        let numbered: Vec<String> =
            NAMES.iter().enumerate().map(|(number, name)| format!("{number} {name}")).collect();
        let listed = [numbered.join(", ")];
        let rows: Vec<_> = numbered.iter().map(|policy| format!("| {policy} |")).collect();
        let mut missing = Vec::new();
        for (file, texts) in [
            ("cli/src/table.rs", &quoted[..]),
            ("monitor/src/page/page.html", &quoted),
            ("monitor/src/metrics/families.rs", &[format!("scheduling policy, {range}.")]),
            ("deploy/monitor.toml", &listed),
            ("docs/control.md", &listed),
            ("docs/glossary.md", &listed),
            ("docs/settings.md", &[format!("| `policy` | {range} ")]),
            ("docs/policies.md", &rows),
            ("docs/internals/turns.md", &rows),
        ] {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let absent = texts.iter().filter(|part| !text.contains(part.as_str()));
            missing.extend(absent.map(|part| format!("{file}: {part}")));
        }
        assert!(missing.is_empty(), "expected in these files:\n{}", missing.join("\n"));
    }

    #[test]
    fn idle_container_counts_only_where_it_keeps_its_share() {
        let idle = Presence { created: true, open: false };
        assert!(!Policy::Preemptive.counts(idle));
        assert!(!Policy::Soft.counts(idle));
        assert!(Policy::Weighted { conserving: false }.counts(idle));
        assert!(Policy::Fixed { slots: 20 }.counts(idle));
        for without_turns in [Policy::Native, Policy::Mps] {
            assert!(!without_turns.counts(Presence { created: true, open: true }));
        }
    }

    #[test]
    fn weight_follows_the_policy() {
        let nine = Entitlement::of_weight(9);
        let thirty = Entitlement { percent: Some(30), ..nine };
        for (policy, entitlement, weight) in [
            (Policy::Preemptive, &nine, 1),
            (Policy::Soft, &nine, 1),
            (Policy::Weighted { conserving: true }, &nine, 9),
            (Policy::Average { slots: 20 }, &nine, 5_000),
            (Policy::Average { slots: 1 }, &nine, WHOLE),
            (Policy::Fixed { slots: 20 }, &nine, 45_000),
            (Policy::Fixed { slots: 4 }, &nine, WHOLE),
            (Policy::Fixed { slots: 20 }, &thirty, 30_000),
        ] {
            assert_eq!(policy.weight(entitlement), weight, "{policy:?} {entitlement:?}");
        }
    }

    /// `docs/policies.md`, "The policies".
    #[test]
    fn idle_share_burns_stays_idle_or_goes_to_background_tenants_by_policy() {
        for (policy, burns, fixed, background) in [
            (Policy::Average { slots: 20 }, false, true, false),
            (Policy::Preemptive, false, false, true),
            (Policy::Weighted { conserving: false }, true, false, false),
            (Policy::Weighted { conserving: true }, false, false, true),
            (Policy::Fixed { slots: 20 }, false, true, false),
            (Policy::Soft, false, false, true),
            (Policy::Native, false, false, false),
            (Policy::Mps, false, false, false),
        ] {
            let found = (policy.burns(), policy.is_fixed(), policy.has_background());
            assert_eq!(found, (burns, fixed, background), "{policy:?}");
        }
    }

    /// `docs/internals/turns.md`, section 2.
    #[test]
    fn single_active_member_needs_turns_only_where_idle_slots_burn() {
        assert_eq!(Policy::Weighted { conserving: false }.contended_at(), 1);
        assert_eq!(Policy::Weighted { conserving: true }.contended_at(), 2);
        assert_eq!(Policy::Preemptive.contended_at(), 2);
    }
}
