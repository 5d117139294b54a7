//! Who shares a card, and by which weight.

/// How a card is shared. The numbers are cGPU's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// 1: equal shares among the containers that have the card open; who is idle is skipped.
    #[default]
    Preemptive,
    /// 2: shares by weight among the containers that were created.
    Weighted {
        /// False: a created but idle container burns its slots, as cGPU documents it. True: others use them.
        conserving: bool,
    },
    /// 5: no turns at all; memory is limited, time is the card's own business.
    Native,
}

impl Policy {
    /// By number. None: not a policy, or not one that this monitor has yet (0, 3, 4).
    #[must_use]
    pub fn numbered(number: u32, conserving: bool) -> Option<Self> {
        match number {
            1 => Some(Self::Preemptive),
            2 => Some(Self::Weighted { conserving }),
            5 => Some(Self::Native),
            _ => None,
        }
    }

    /// 0..5.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Preemptive => 1,
            Self::Weighted { .. } => 2,
            Self::Native => 5,
        }
    }

    /// Whether a container is one of those that share the card.
    #[must_use]
    pub const fn counts(self, standing: Standing) -> bool {
        match self {
            Self::Preemptive => standing.open,
            Self::Weighted { .. } => standing.open || standing.created,
            Self::Native => false,
        }
    }

    /// Whether a member's time is its own even while it does nothing.
    #[must_use]
    pub const fn strict(self) -> bool {
        matches!(self, Self::Weighted { conserving: false })
    }

    /// A member's weight under this policy.
    #[must_use]
    pub const fn weight(self, weight: u32) -> u64 {
        match self {
            Self::Weighted { .. } if weight > 0 => weight as u64,
            _ => 1,
        }
    }

    /// How many members must be active for turns to be needed, when there are two or more.
    #[must_use]
    pub const fn contended_at(self) -> usize {
        if self.strict() { 1 } else { 2 }
    }
}

/// Where a container stands with a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// It was made for this card and whoever made it lives, whether or not a process uses the card.
    pub created: bool,
    /// A living process of it has the card open.
    pub open: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_control_tree() {
        for number in 0..9 {
            match Policy::numbered(number, false) {
                Some(policy) => assert_eq!(policy.number(), number),
                None => assert!(![1, 2, 5].contains(&number)),
            }
        }
    }

    #[test]
    fn an_idle_container_counts_only_where_it_burns_its_slots() {
        let idle = Standing { created: true, open: false };
        assert!(!Policy::Preemptive.counts(idle));
        assert!(Policy::Weighted { conserving: false }.counts(idle));
        assert!(!Policy::Native.counts(Standing { created: true, open: true }));
        assert_eq!(Policy::Preemptive.weight(9), 1);
        assert_eq!(Policy::Weighted { conserving: true }.weight(9), 9);
    }
}
