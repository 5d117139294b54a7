//! What a pod needs of each card, once it is said over how many cards.

use crate::ask::{Amount, Ask, Memory};
use crate::cards::Card;
use crate::names::{COUNT, POD_LABELS};
use crate::object::Texts;
use crate::refusal::{Refusal, quoted};
use crate::share::{Role, Share, most};

/// Cards that a container can have: the region of one has room for so many.
pub const MOST_CARDS: usize = 16;

/// What one container needs, the same of each of its cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its place in allocations.
    pub index: usize,
    /// When it runs.
    pub role: Role,
    /// The first so many of the pod's cards.
    pub cards: usize,
    /// Of each.
    pub memory: Memory,
    /// Of each.
    pub percent: u32,
}

impl Need {
    /// Of this card.
    #[must_use]
    pub fn of(&self, card: &Card) -> Share {
        Share { units: self.memory.units_of(card), percent: self.percent, places: 1 }
    }
}

/// What a pod needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Cards, all of one node.
    pub cards: usize,
    /// By container, as they run.
    pub needs: Vec<Need>,
    /// What was passed over, for people.
    pub notes: Vec<String>,
}

impl Demand {
    /// Divides what is asked for by the cards that the pod's label says.
    ///
    /// # Errors
    /// It does not divide, is more than a card can be, or the label is not understood.
    pub fn of(asks: &[Ask], labels: &Texts) -> Result<Self, Refusal> {
        let mut notes = Vec::new();
        for name in labels.keys().filter(|name| name.starts_with(POD_LABELS) && *name != COUNT) {
            notes.push(format!("the label {} means nothing here; expected {COUNT}", quoted(name)));
        }
        let label = match labels.get(COUNT) {
            None => 1,
            Some(text) => labelled(text)?,
        };
        let mut needs = Vec::with_capacity(asks.len());
        for ask in asks {
            let need = match ask.amount {
                Amount::InAll { units, percent } => divided(ask, units, percent, label)?,
                Amount::Each { cards, memory, percent } => {
                    if cards > MOST_CARDS {
                        return Err(Refusal::new(format!(
                            "container `{}` asks for {cards} cards, expected at most {MOST_CARDS}",
                            ask.container
                        )));
                    }
                    Need { index: ask.index, role: ask.role, cards, memory, percent }
                }
            };
            needs.push(need);
        }
        let cards = needs.iter().map(|need| need.cards).max().unwrap_or(0);
        if labels.contains_key(COUNT) && asks.iter().any(|ask| matches!(ask.amount, Amount::Each { .. })) {
            notes.push(format!(
                "the label {COUNT} counts for aliyun.com/gpu-mem alone; nvidia.com/gpu says how many cards"
            ));
        }
        Ok(Self { cards, needs, notes })
    }

    /// What the pod has of `card` at most at any time, if that is its card of this place (0 is the first).
    #[must_use]
    pub fn of_card(&self, place: usize, card: &Card) -> Share {
        most(self.needs.iter().filter(|need| need.cards > place).map(|need| (need.role, need.of(card))))
    }
}

fn divided(ask: &Ask, units: u64, percent: u32, cards: usize) -> Result<Need, Refusal> {
    let wrong = |name: &str, amount: u64| {
        Refusal::new(format!(
            "{name} of container `{}` is {amount}, which does not divide by the {cards} cards of the label {COUNT}; expected a multiple of {cards}",
            ask.container
        ))
    };
    if !units.is_multiple_of(cards as u64) {
        return Err(wrong(crate::names::MEMORY, units));
    }
    if !u64::from(percent).is_multiple_of(cards as u64) {
        return Err(wrong(crate::names::CORE, u64::from(percent)));
    }
    let each = u64::from(percent) / cards as u64;
    let Some(each) = u32::try_from(each).ok().filter(|each| *each <= 100) else {
        return Err(Refusal::new(format!(
            "{} of container `{}` is {percent} over {cards} cards, expected at most 100 for each",
            crate::names::CORE,
            ask.container
        )));
    };
    let memory = Memory::Units(units / cards as u64);
    Ok(Need { index: ask.index, role: ask.role, cards, memory, percent: each })
}

fn labelled(text: &str) -> Result<usize, Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.filter(|number| (1..=MOST_CARDS).contains(number)).ok_or_else(|| {
        Refusal::new(format!(
            "the label {COUNT} is {}, expected a number of cards from 1 to {MOST_CARDS}",
            quoted(text)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(index: usize, role: Role, units: u64, percent: u32) -> Ask {
        Ask { container: format!("c{index}"), role, index, amount: Amount::InAll { units, percent } }
    }

    fn label(text: &str) -> Texts {
        [(COUNT.to_owned(), text.to_owned())].into()
    }

    #[test]
    fn memory_is_divided_over_the_cards() {
        // Document 000: 8 over 4 cards.
        let demand = Demand::of(&[ask(0, Role::Container, 8, 0)], &label("4")).unwrap();
        assert_eq!(demand.cards, 4);
        let card = Card::plain(0, 15);
        assert_eq!(demand.of_card(3, &card), Share { units: 2, percent: 0, places: 1 });
        assert_eq!(demand.of_card(4, &card), Share::NONE);
        let both = Demand::of(&[ask(0, Role::Container, 8, 100), ask(1, Role::Container, 4, 0)], &label("2"))
            .unwrap();
        assert_eq!(both.of_card(1, &card), Share { units: 6, percent: 50, places: 2 });
        let plain = Demand::of(&[ask(0, Role::Container, 8, 30)], &Texts::new()).unwrap();
        assert_eq!((plain.cards, plain.of_card(0, &card).units), (1, 8));
    }

    #[test]
    fn what_does_not_divide_is_refused_in_words() {
        for (units, percent, text, sentence) in [
            (
                8,
                0,
                "3",
                "aliyun.com/gpu-mem of container `c0` is 8, which does not divide by the 3 cards of the label aliyun.com/gpu-count; expected a multiple of 3",
            ),
            (
                8,
                30,
                "4",
                "aliyun.com/gpu-core.percentage of container `c0` is 30, which does not divide by the 4 cards",
            ),
            (8, 400, "2", "is 400 over 2 cards, expected at most 100 for each"),
            (8, 0, "0", "the label aliyun.com/gpu-count is `0`, expected a number of cards from 1 to 16"),
            (8, 0, "17", "is `17`, expected a number of cards from 1 to 16"),
            (8, 0, "-2", "is `-2`, expected"),
            (8, 0, "two", "is `two`, expected"),
            (8, 0, "", "is ``, expected"),
            (8, 0, "99999999999999999999999", "expected a number of cards"),
        ] {
            let refusal =
                Demand::of(&[ask(0, Role::Container, units, percent)], &label(text)).unwrap_err().to_string();
            assert!(refusal.contains(sentence), "{text}: {refusal}");
        }
    }

    #[test]
    fn labels_that_nobody_knows_are_told() {
        let labels =
            [("aliyun.com/gpu-cout".to_owned(), "4".to_owned()), ("app".to_owned(), "x".to_owned())].into();
        let demand = Demand::of(&[ask(0, Role::Container, 8, 0)], &labels).unwrap();
        assert_eq!(
            demand.notes,
            ["the label `aliyun.com/gpu-cout` means nothing here; expected aliyun.com/gpu-count"]
        );
        assert_eq!(demand.cards, 1);
    }

    #[test]
    fn containers_may_have_fewer_cards_than_their_pod() {
        let each = |index, cards| Ask {
            container: format!("c{index}"),
            role: Role::Container,
            index,
            amount: Amount::Each { cards, memory: Memory::Units(3), percent: 0 },
        };
        let demand = Demand::of(&[each(0, 2), each(1, 1)], &label("9")).unwrap();
        let card = Card::plain(0, 14);
        assert_eq!((demand.cards, demand.of_card(0, &card).units, demand.of_card(1, &card).units), (2, 6, 3));
        assert_eq!(demand.notes.len(), 1);
        assert!(Demand::of(&[each(0, 17)], &Texts::new()).is_err());
    }
}
