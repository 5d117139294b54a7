//! Which cards the program sees, and under which numbers: `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`.
//!
//! The driver numbers cards from the fastest to the slowest, unless `CUDA_DEVICE_ORDER=PCI_BUS_ID` asks for their order on the bus,
//! which is the machine's. `CUDA_VISIBLE_DEVICES` then picks some by these numbers or by UUIDs, which may be shortened, and numbers them
//! anew; the first entry that names no card ends the list (so `-1` and the empty text hide all), and one card twice hides all, too.
//! NVML knows nothing of either.
//!
//! Of divided cards a program sees one instance and nothing else: the first that is named, by its UUID (`MIG-…`) or by its card. If
//! nothing is named it sees the whole cards, or, where there are none, the first instance of the first.

use std::cmp::Reverse;

use cgpu_abi::types::CUdevice;
use cgpu_shm::uuid::Uuid;
use cgpu_sim::CardSpec;
use cgpu_sim::instance::Part;

/// `CU_DEVICE_INVALID`: what the driver calls a card that it cannot name.
pub(crate) const NO_CARD: CUdevice = -2;

/// The visible cards, by their numbers: each one's place in the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Visible(Vec<usize>);

impl Visible {
    /// As the process's variables say.
    pub(crate) fn from_environment(cards: &[CardSpec]) -> Self {
        let read = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let by_bus = read("CUDA_DEVICE_ORDER").as_deref() == Some("PCI_BUS_ID");
        Self::read(cards, by_bus, read("CUDA_VISIBLE_DEVICES").as_deref())
    }

    fn read(cards: &[CardSpec], by_bus: bool, picked: Option<&str>) -> Self {
        let is_instance = |card: usize| matches!(cards[card].part, Part::Instance(_));
        let mut order: Vec<usize> = (0..cards.len()).filter(|&card| !is_instance(card)).collect();
        if !by_bus {
            order
                .sort_by_key(|&card| Reverse(cards[card].model.multiprocessors * cards[card].model.core_mhz));
        }
        // A divided card computes by its first instance.
        let computing = |card: usize| match cards[card].part {
            Part::Divided => card + 1,
            Part::Whole | Part::Instance(_) => card,
        };
        let Some(picked) = picked else {
            let whole: Vec<usize> =
                order.iter().copied().filter(|&card| cards[card].part == Part::Whole).collect();
            let first = order.first().map(|&card| computing(card));
            return Self(if whole.is_empty() { first.into_iter().collect() } else { whole });
        };
        let name = |card: usize| {
            let kind = if is_instance(card) { "MIG" } else { "GPU" };
            Uuid(cards[card].uuid(card)).to_string().replacen("GPU", kind, 1)
        };
        let mut visible = Vec::new();
        for entry in picked.split(',').map(str::trim) {
            let kind = ["GPU-", "MIG-"].into_iter().find(|kind| entry.starts_with(kind));
            let named = match kind.map(|kind| (kind, &entry[kind.len()..])) {
                Some((kind, digits)) if !digits.is_empty() => {
                    let entry = format!("{kind}{}", digits.to_lowercase());
                    let mut found = (0..cards.len()).filter(|&card| name(card).starts_with(&entry));
                    found.next().filter(|_| found.next().is_none())
                }
                _ => entry.parse().ok().and_then(|number: usize| order.get(number).copied()),
            };
            match named.map(computing) {
                Some(card) if visible.contains(&card) => return Self(Vec::new()),
                Some(card) => visible.push(card),
                None => break,
            }
        }
        match visible.iter().copied().find(|&card| is_instance(card)) {
            Some(instance) => Self(vec![instance]),
            None => Self(visible),
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The place of a device in the machine.
    pub(crate) fn card(&self, device: CUdevice) -> Option<usize> {
        self.0.get(usize::try_from(device).ok()?).copied()
    }

    /// The number of the card at a place; none where the program hid it.
    pub(crate) fn device(&self, card: usize) -> Option<CUdevice> {
        CUdevice::try_from(self.0.iter().position(|&place| place == card)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_picked_in_the_order_asked_for() {
        let cards = CardSpec::parse_list("T4:15109,A100:40960,A10:23028").expect("a list of cards");
        let full = |card: usize| Uuid(cards[card].uuid(card)).to_string();
        let short = full(0)[..12].to_owned();
        let (first, two) = (full(2), format!("{short},{}", full(1)));
        for (by_bus, picked, expected) in [
            (false, None, &[1, 2, 0][..]),
            (true, None, &[0, 1, 2]),
            (false, Some("0"), &[1]),
            (true, Some("0"), &[0]),
            (true, Some("2,0"), &[2, 0]),
            (false, Some("2, 0"), &[0, 1]),
            (true, Some(""), &[]),
            (true, Some("-1"), &[]),
            (true, Some("1,7,0"), &[1]),
            (true, Some("1,1"), &[]),
            (true, Some("GPU-"), &[]),
            (false, Some(first.as_str()), &[2]),
            (false, Some(two.as_str()), &[0, 1]),
        ] {
            assert_eq!(Visible::read(&cards, by_bus, picked).0, expected, "{by_bus} {picked:?}");
        }
    }

    #[test]
    fn of_divided_cards_one_instance_is_seen() {
        let cards = CardSpec::parse_list("A100:40960/mig=3g.20gb,1g.5gb,T4").expect("a list of cards");
        let uuid = |card: usize| Uuid(cards[card].uuid(card)).to_string();
        let (last, whole) = (uuid(2).replacen("GPU", "MIG", 1), uuid(0));
        for (picked, expected) in [
            (None, 3),
            (Some("0"), 1),
            (Some("1"), 3),
            (Some("1,0"), 1),
            (Some(last.as_str()), 2),
            (Some(&last[..10]), 2),
            (Some(whole.as_str()), 1),
        ] {
            assert_eq!(Visible::read(&cards, true, picked).0, [expected], "{picked:?}");
        }
        let divided = CardSpec::parse_list("A100/mig=1g.10gb,1g.10gb").expect("a list of cards");
        assert_eq!(Visible::read(&divided, true, None).0, [1]);
    }

    #[test]
    fn numbers_lead_there_and_back() {
        let cards = CardSpec::parse_list("A10,A10,A10").expect("a list of cards");
        let visible = Visible::read(&cards, true, Some("2,0"));
        assert_eq!(visible.count(), 2);
        assert_eq!(
            (visible.card(0), visible.card(1), visible.card(2), visible.card(-1)),
            (Some(2), Some(0), None, None)
        );
        assert_eq!((visible.device(2), visible.device(0), visible.device(1)), (Some(0), Some(1), None));
    }
}
