//! Which cards a pod was given: its annotations, written by whoever placed it, read back with suspicion.

use std::collections::{BTreeMap, BTreeSet};

use crate::ask::{Amount, Ask, Memory, part};
use crate::cards::{Card, NodeCards};
use crate::names::annotation;
use crate::object::Texts;
use crate::refusal::{Refusal, quoted};
use crate::share::{Role, Share, most};
use crate::unit::Unit;

/// Units by card.
pub type ByCard = BTreeMap<u32, u64>;

/// Who has what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Everything is on this card.
    Card(u32),
    /// By container.
    Containers(BTreeMap<usize, ByCard>),
}

/// What annotations say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Which cards, and how much of them.
    pub split: Split,
    /// Units that the cards had then: of all, or of each of the pod's cards by index. Empty: as they have now.
    pub sizes: Vec<u64>,
    /// The node whose cards are meant; gpushare does not say.
    pub node: Option<String>,
    /// When it was written, in nanoseconds since 1970; 0: it does not say.
    pub since: u64,
}

impl Allocation {
    /// Reads it. None: nobody has placed this pod.
    ///
    /// # Errors
    /// An annotation that is there cannot be understood.
    pub fn read(annotations: &Texts) -> Result<Option<Self>, Refusal> {
        let text = |name: &str| annotations.get(name).map(String::as_str);
        let split = match (text(annotation::ALLOCATION), text(annotation::INDEX)) {
            (Some(text), _) => Split::Containers(serde_json::from_str(text).map_err(|_| {
                unfit(annotation::ALLOCATION, text, "units by card by container, such as `{\"0\":{\"1\":8}}`")
            })?),
            // So gpushare writes that it found none.
            (None, None | Some("-1")) => return Ok(None),
            (None, Some(text)) => Split::Card(
                number(text).ok_or_else(|| unfit(annotation::INDEX, text, "the index of a card"))?,
            ),
        };
        let sizes = match text(annotation::DEVICE) {
            None => Vec::new(),
            Some(text) => text
                .split(',')
                .map(|size| number(size).filter(|size| *size > 0))
                .collect::<Option<_>>()
                .ok_or_else(|| {
                    unfit(annotation::DEVICE, text, "the units of a card, or of each joined by commas")
                })?,
        };
        // The time only says how patient to be: of one that is not understood it is as if it were long past.
        let since = text(annotation::ASSUME_TIME).and_then(number).unwrap_or(0);
        Ok(Some(Self { split, sizes, node: text(annotation::NODE).map(str::to_owned), since }))
    }

    /// What the pod holds of which cards of this node.
    ///
    /// # Errors
    /// It does not fit what the pod asks for, or the node.
    pub fn shares(&self, asks: &[Ask], node: &NodeCards) -> Result<Vec<(u32, Share)>, Refusal> {
        let own;
        let containers = match &self.split {
            Split::Card(card) => {
                own = asks
                    .iter()
                    .map(|ask| Ok((ask.index, self.on_one(ask, *card, node)?)))
                    .collect::<Result<_, Refusal>>()?;
                &own
            }
            Split::Containers(containers) => containers,
        };
        if let Some((index, _)) =
            containers.iter().find(|(index, _)| asks.iter().all(|ask| ask.index != **index))
        {
            return Err(Refusal::new(format!(
                "{} names container {index}, which asks for nothing",
                annotation::ALLOCATION
            )));
        }
        let cards: BTreeSet<u32> = containers.values().flat_map(BTreeMap::keys).copied().collect();
        let sizes = self.sizes_of(&cards, node)?;
        let mut parts: BTreeMap<u32, Vec<(Role, Share)>> = BTreeMap::new();
        for ask in asks {
            let none = BTreeMap::new();
            let by_card = containers.get(&ask.index).unwrap_or(&none);
            agrees(ask, by_card, &sizes)?;
            for (index, units) in by_card {
                let card = &sizes[index];
                let percent = match ask.amount {
                    Amount::InAll { percent, .. } => {
                        percent.div_ceil(u32::try_from(by_card.len()).unwrap_or(1))
                    }
                    Amount::Each { percent, .. } => percent,
                };
                let now = node.card(*index).map_or(0, |card| card.units);
                let units = part(*units, now, card.units);
                parts.entry(*index).or_default().push((ask.role, Share { units, percent, places: 1 }));
            }
        }
        Ok(parts.into_iter().map(|(card, parts)| (card, most(parts))).collect())
    }

    /// gpushare's form: everything that a container asks for is on this one card.
    pub(crate) fn on_one(&self, ask: &Ask, index: u32, node: &NodeCards) -> Result<ByCard, Refusal> {
        let units = match ask.amount {
            Amount::InAll { units, .. } => units,
            Amount::Each { memory, .. } => {
                let sizes = self.sizes_of(&[index].into(), node)?;
                memory.units_of(&sizes[&index])
            }
        };
        Ok([(index, units)].into())
    }

    /// The cards as they were when they were given.
    pub(crate) fn sizes_of(
        &self,
        cards: &BTreeSet<u32>,
        node: &NodeCards,
    ) -> Result<BTreeMap<u32, Card>, Refusal> {
        if self.sizes.len() > 1 && self.sizes.len() != cards.len() {
            return Err(Refusal::new(format!(
                "{} has {} sizes for {} cards, expected one or as many",
                annotation::DEVICE,
                self.sizes.len(),
                cards.len()
            )));
        }
        let mut sizes = BTreeMap::new();
        for (place, index) in cards.iter().enumerate() {
            let Some(card) = node.card(*index) else {
                return Err(Refusal::new(format!(
                    "it names card {index}, but the node has {} cards",
                    node.cards.len()
                )));
            };
            let units = self.sizes.get(place).or(self.sizes.first()).copied().unwrap_or(card.units);
            if !was(card, units) {
                return Err(Refusal::new(format!(
                    "{} says that card {index} had {units} units, which {} MiB are not in any unit",
                    annotation::DEVICE,
                    card.mib.unwrap_or_default()
                )));
            }
            sizes.insert(*index, Card { units, ..card.clone() });
        }
        Ok(sizes)
    }
}

/// Whether a card can ever have had so many units: it has as much memory as ever, but what a unit is may have changed.
fn was(card: &Card, units: u64) -> bool {
    units == card.units || card.mib.is_none_or(|mib| Unit::ALL.iter().any(|unit| unit.units_of(mib) == units))
}

/// What a container was given is what it asks for: no more, or others would have less than they think; no less, or it would take more than it has.
fn agrees(ask: &Ask, by_card: &ByCard, sizes: &BTreeMap<u32, Card>) -> Result<(), Refusal> {
    let refuse = |has: u64, asks: u64| {
        Refusal::new(format!("container `{}` was given {has} units, but asks for {asks}", ask.container))
    };
    // Whoever reads a limit of 0 takes it for none at all.
    if let Some((index, _)) = by_card.iter().find(|(_, units)| **units == 0) {
        return Err(Refusal::new(format!(
            "container `{}` was given 0 units of card {index}, expected at least 1",
            ask.container
        )));
    }
    if let Some((index, units)) = by_card.iter().find(|(index, units)| **units > sizes[index].units) {
        return Err(Refusal::new(format!(
            "container `{}` was given {units} units of card {index}, which has {}",
            ask.container, sizes[index].units
        )));
    }
    match ask.amount {
        Amount::InAll { units, .. } => {
            let given = by_card.values().fold(0_u64, |sum, units| sum.saturating_add(*units));
            if given != units {
                return Err(refuse(given, units));
            }
        }
        Amount::Each { cards, memory, .. } => {
            if by_card.len() != cards {
                return Err(Refusal::new(format!(
                    "container `{}` was given {} cards, but asks for {cards}",
                    ask.container,
                    by_card.len()
                )));
            }
            for (index, given) in by_card {
                let asked = memory.units_of(&sizes[index]);
                if *given != asked && memory != Memory::Whole {
                    return Err(refuse(*given, asked));
                }
            }
        }
    }
    Ok(())
}

fn unfit(name: &str, text: &str, expected: &str) -> Refusal {
    Refusal::new(format!("{name} is {}, expected {expected}", quoted(text)))
}

/// Digits and nothing else.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;
