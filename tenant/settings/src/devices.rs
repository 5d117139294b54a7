//! Which cards, and in which order: `NVIDIA_VISIBLE_DEVICES` and `ALIYUN_COM_GPU_VISIBLE_DEVICES`.
//!
//! The entries of the memory list follow `NVIDIA_VISIBLE_DEVICES`. Its indexes are the host's, and inside a container the cards
//! are numbered anew from 0, in the same order. So, where as many cards are visible as are named, indexes are taken by rank:
//! `5,2` names the second and the first of two. Where fewer are named than are visible (no container runtime has narrowed the
//! view), an index is the card's place in PCI order. UUIDs are themselves.
//!
//! A card that is cut into MIG instances keeps its index, and its instances have none: they go by UUID. In the list of all cards
//! they stand where their card would.

use cgpu_shm::uuid::whole_card;

use super::value::Value;
use crate::cards::{CardInfo, UuidStart};
use crate::{Inventory, Refusal};

/// One name of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Index(u64),
    Uuid(UuidStart),
}

/// A list of cards as a variable gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// `all`, or not set.
    All,
    /// `none` or `void`: the variable names nothing.
    Nothing,
    Names(Value, Vec<Name>),
}

/// What a list of cards may hold, for sentences.
const EXPECTED: &str = "`all`, or indexes and UUIDs joined by commas, such as `0,1` or `GPU-8f0e6a8c-...`";

impl Listed {
    pub(crate) fn read(value: Option<Value>) -> Result<Self, Refusal> {
        let Some(value) = value else { return Ok(Self::All) };
        match value.text()? {
            "all" => return Ok(Self::All),
            "none" | "void" => return Ok(Self::Nothing),
            _ => {}
        }
        let names: Option<Vec<Name>> = value.text()?.split(',').map(Name::parse).collect();
        match names {
            Some(names) => Ok(Self::Names(value, names)),
            None => Err(value.refused(EXPECTED, "correct it (MIG devices go by their own UUID, `MIG-...`)")),
        }
    }
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches([' ', '\t']);
        if let Some(index) = super::amounts::whole(text) {
            return Some(Self::Index(index));
        }
        let text = whole_card(text).unwrap_or(text);
        let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"))?;
        UuidStart::parse(digits).map(Self::Uuid)
    }
}

/// The visible cards, and the place of each in the memory list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Visible {
    /// At each place its card; none where the program hid it from itself. With each, the name it was given.
    Placed(Vec<(Name, Option<CardInfo>)>),
    /// The cards are there, but which of them has which place cannot be told.
    Unplaced(Vec<CardInfo>),
}

impl Visible {
    /// Resolves `NVIDIA_VISIBLE_DEVICES`.
    pub(crate) fn resolve(listed: &Listed, inventory: Inventory<'_>) -> Result<Self, Refusal> {
        let mut cards = inventory.cards.to_vec();
        cards.sort_by_key(|card| (card.order, card.uuid));
        let (value, names) = match listed {
            // A name of nothing while cards are there: they came by another way (device plugins with CDI set `void`). The limit
            // must not vanish with the name.
            Listed::All | Listed::Nothing if inventory.complete => {
                return Ok(Self::Placed(numbered(&cards)));
            }
            Listed::All | Listed::Nothing => return Ok(Self::Unplaced(cards)),
            Listed::Names(value, names) => (value, names),
        };
        let indexed = names.iter().any(|name| matches!(name, Name::Index(_)));
        if indexed && !inventory.complete {
            return Ok(Self::Unplaced(cards));
        }
        if inventory.complete && names.len() > cards.len() {
            return Err(value.unfit(
                &format!("which names {} cards, but {} are visible", names.len(), cards.len()),
                "name only cards that the container has",
            ));
        }
        let indexes = Indexes::of(names, &cards);
        let mut placed: Vec<(Name, Option<CardInfo>)> = Vec::new();
        for &name in names {
            let card = match name {
                Name::Index(index) => match indexes.card(index) {
                    Some(Whole::Card(card)) => Some(card),
                    Some(Whole::Cut) => {
                        return Err(value.unfit(
                            &format!("but card {index} is cut into MIG instances"),
                            "name those by their own UUID, `MIG-...` (`nvidia-smi -L` lists them)",
                        ));
                    }
                    None => {
                        return Err(value.unfit(
                            &format!("but there is no card {index}: {} are visible", cards.len()),
                            "name only cards that the container has",
                        ));
                    }
                },
                Name::Uuid(start) => match matching(start, &cards, value)? {
                    Some(card) => Some(card),
                    None if !inventory.complete => None,
                    None => {
                        return Err(value.unfit(
                            "which names a card that is not visible",
                            "name only cards that the container has (`nvidia-smi -L` lists them)",
                        ));
                    }
                },
            };
            if placed.iter().any(|(former, other)| *former == name || (card.is_some() && *other == card)) {
                return Err(value.unfit("which names a card twice", "name each card once"));
            }
            placed.push((name, card));
        }
        Ok(Self::Placed(placed))
    }

    /// The cards that the program has not hidden from itself, with their places.
    pub(crate) fn cards(&self) -> impl Iterator<Item = (usize, CardInfo)> {
        let (placed, unplaced): (&[_], &[_]) = match self {
            Self::Placed(placed) => (placed, &[]),
            Self::Unplaced(cards) => (&[], cards),
        };
        let placed =
            placed.iter().enumerate().filter_map(|(place, (_, card))| card.map(|card| (place, card)));
        placed.chain(unplaced.iter().copied().enumerate())
    }

    /// Whether `card`, at this place, is one that `ALIYUN_COM_GPU_VISIBLE_DEVICES` slices.
    pub(crate) fn slices(&self, sliced: &Listed, card: &CardInfo) -> bool {
        let Listed::Names(_, names) = sliced else { return *sliced == Listed::All };
        names.iter().any(|name| match (name, self) {
            (Name::Uuid(start), _) => start.begins(card.uuid),
            (Name::Index(_), Self::Placed(placed)) => {
                placed.iter().any(|(former, other)| former == name && other.as_ref() == Some(card))
            }
            (Name::Index(_), Self::Unplaced(_)) => false,
        })
    }

    /// Refuses names in `ALIYUN_COM_GPU_VISIBLE_DEVICES` that are none of these cards.
    pub(crate) fn check(&self, sliced: &Listed, complete: bool) -> Result<(), Refusal> {
        let Listed::Names(value, names) = sliced else { return Ok(()) };
        for name in names {
            let known = match (name, self) {
                (Name::Uuid(start), Self::Placed(placed)) => {
                    let cards: Vec<CardInfo> = placed.iter().filter_map(|(_, card)| *card).collect();
                    matching(*start, &cards, value)?.is_some() || !complete
                }
                (Name::Uuid(_), Self::Unplaced(_)) => true,
                (Name::Index(_), Self::Placed(placed)) => placed.iter().any(|(former, _)| former == name),
                (Name::Index(_), Self::Unplaced(_)) => return Err(unplaced(value)),
            };
            if !known {
                return Err(value.unfit(
                    "which names a card that NVIDIA_VISIBLE_DEVICES does not",
                    "name the cards as NVIDIA_VISIBLE_DEVICES does",
                ));
            }
        }
        Ok(())
    }
}

/// The refusal of a list whose places cannot be told.
pub(crate) fn unplaced(value: &Value) -> Refusal {
    value.unfit(
        "but which card is which cannot be told: CUDA_VISIBLE_DEVICES hides some and NVML is not there",
        "name the cards by UUID in NVIDIA_VISIBLE_DEVICES, or unset CUDA_VISIBLE_DEVICES",
    )
}

/// The one card that begins so; none; or a refusal if it is not clear which.
fn matching(start: UuidStart, cards: &[CardInfo], value: &Value) -> Result<Option<CardInfo>, Refusal> {
    let mut found = cards.iter().filter(|card| start.begins(card.uuid));
    let first = found.next().copied();
    match found.next() {
        None => Ok(first),
        Some(_) => Err(value.unfit("which fits more than one card", "give more digits of the UUID")),
    }
}

/// What an index may lead to.
#[derive(Clone, Copy)]
enum Whole {
    Card(CardInfo),
    /// A card that is cut into MIG instances.
    Cut,
}

/// The cards that have an index, from cards in PCI order; with each of these its card's.
fn whole_cards(cards: &[CardInfo]) -> (Vec<Whole>, Vec<u64>) {
    let mut whole = Vec::new();
    let mut indexes = Vec::new();
    let mut cut = None;
    for card in cards {
        if !card.is_instance() {
            whole.push(Whole::Card(*card));
        } else if cut != Some(card.whole_order()) {
            whole.push(Whole::Cut);
            cut = Some(card.whole_order());
        }
        indexes.push((whole.len() as u64).saturating_sub(1));
    }
    (whole, indexes)
}

/// All cards, each by the name that it has where no variable gives it one.
fn numbered(cards: &[CardInfo]) -> Vec<(Name, Option<CardInfo>)> {
    let name = |card: &CardInfo, index| {
        if card.is_instance() { Name::Uuid(UuidStart::whole(card.uuid)) } else { Name::Index(index) }
    };
    let (_, indexes) = whole_cards(cards);
    cards.iter().zip(indexes).map(|(card, index)| (name(card, index), Some(*card))).collect()
}

/// Indexes to cards: by rank where every card is named, else by place.
struct Indexes {
    cards: Vec<(u64, Whole)>,
}

impl Indexes {
    fn of(names: &[Name], cards: &[CardInfo]) -> Self {
        let (whole, _) = whole_cards(cards);
        let begins = |name: &Name, card: &Whole| match (name, card) {
            (Name::Uuid(start), Whole::Card(card)) => start.begins(card.uuid),
            _ => false,
        };
        let concerned = |name: &&Name| match name {
            Name::Index(_) => true,
            Name::Uuid(_) => whole.iter().any(|card| begins(name, card)),
        };
        if names.iter().filter(concerned).count() != whole.len() {
            return Self { cards: (0..).zip(whole).collect() };
        }
        let rest = whole.iter().copied().filter(|card| !names.iter().any(|name| begins(name, card)));
        let mut indexes: Vec<u64> = names
            .iter()
            .filter_map(|name| if let Name::Index(index) = name { Some(*index) } else { None })
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        Self { cards: indexes.into_iter().zip(rest).collect() }
    }

    fn card(&self, index: u64) -> Option<Whole> {
        self.cards.iter().find(|(place, _)| *place == index).map(|(_, card)| *card)
    }
}
