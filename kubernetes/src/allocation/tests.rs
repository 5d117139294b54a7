use super::*;
use crate::cards::Placement;

fn node(sizes: &[u64]) -> NodeCards {
    NodeCards {
        name: "n".into(),
        address: "unknown".into(),
        cards: (0..).zip(sizes).map(|(index, units)| Card::plain(index, *units)).collect(),
        placement: Placement::Binpack,
        isolated: true,
        closed: None,
        notes: vec![],
    }
}

fn ask(index: usize, units: u64) -> Ask {
    Ask {
        container: format!("c{index}"),
        role: Role::Container,
        index,
        amount: Amount::InAll { units, percent: 0 },
    }
}

fn texts(pairs: &[(&str, &str)]) -> Texts {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn shares(annotations: &[(&str, &str)], asks: &[Ask], sizes: &[u64]) -> Result<Vec<(u32, u64)>, String> {
    let allocation =
        Allocation::read(&texts(annotations)).map_err(|refusal| refusal.to_string())?.expect("one");
    let shares = allocation.shares(asks, &node(sizes)).map_err(|refusal| refusal.to_string())?;
    Ok(shares.iter().map(|(card, share)| (*card, share.units)).collect())
}

const INDEX: &str = annotation::INDEX;
const DEVICE: &str = annotation::DEVICE;
const SPLIT: &str = annotation::ALLOCATION;

#[test]
fn both_forms_are_read_and_the_longer_counts() {
    assert_eq!(Allocation::read(&texts(&[("other", "x")])), Ok(None));
    assert_eq!(Allocation::read(&texts(&[(INDEX, "-1")])), Ok(None));
    assert_eq!(shares(&[(INDEX, "1")], &[ask(0, 8), ask(1, 3)], &[14, 14]), Ok(vec![(1, 11)]));
    assert_eq!(
        shares(&[(SPLIT, r#"{"0":{"0":4,"2":4},"1":{"2":3}}"#)], &[ask(0, 8), ask(1, 3)], &[14; 3]),
        Ok(vec![(0, 4), (2, 7)])
    );
    assert_eq!(
        shares(&[(INDEX, "0"), (SPLIT, r#"{"0":{"1":8}}"#)], &[ask(0, 8)], &[14; 2]),
        Ok(vec![(1, 8)])
    );
}

#[test]
fn units_are_parts_of_the_card_they_came_from() {
    // 2 of 14 GiB are 17 of the 118 units of 128 MiB that the same card has after the switch.
    assert_eq!(shares(&[(INDEX, "0"), (DEVICE, "14")], &[ask(0, 2)], &[118]), Ok(vec![(0, 17)]));
    assert_eq!(shares(&[(INDEX, "0"), (DEVICE, "118")], &[ask(0, 16)], &[14]), Ok(vec![(0, 2)]));
    assert_eq!(
        shares(&[(SPLIT, r#"{"0":{"0":7,"1":7}}"#), (DEVICE, "14,22")], &[ask(0, 14)], &[28, 44]),
        Ok(vec![(0, 14), (1, 14)])
    );
}

#[test]
fn what_was_edited_by_hand_is_refused_in_words() {
    for (annotations, sentence) in [
        (&[(INDEX, "x")][..], "ALIYUN_COM_GPU_MEM_IDX is `x`, expected the index of a card"),
        (&[(INDEX, "")], "is ``, expected the index of a card"),
        (&[(INDEX, "7")], "it names card 7, but the node has 2 cards"),
        (&[(INDEX, "0"), (DEVICE, "0")], "ALIYUN_COM_GPU_MEM_DEV is `0`, expected the units of a card"),
        (&[(INDEX, "0"), (DEVICE, "14,14")], "has 2 sizes for 1 cards"),
        (&[(INDEX, "0"), (DEVICE, "4")], "container `c0` was given 8 units of card 0, which has 4"),
        (
            &[(SPLIT, "0=8")],
            "scheduler.framework.gpushare.allocation is `0=8`, expected units by card by container",
        ),
        (&[(SPLIT, r#"{"0":{"0":-8}}"#)], "expected units by card by container"),
        (&[(SPLIT, r#"{"0":{"0":2}}"#)], "container `c0` was given 2 units, but asks for 8"),
        (&[(SPLIT, r#"{"0":{"0":12}}"#)], "container `c0` was given 12 units, but asks for 8"),
        (&[(SPLIT, "{}")], "container `c0` was given 0 units, but asks for 8"),
        (&[(SPLIT, r#"{"0":{"0":8},"3":{"0":1}}"#)], "names container 3, which asks for nothing"),
        (&[(SPLIT, r#"{"0":{"0":18446744073709551615,"1":18446744073709551615}}"#)], "which has 14"),
    ] {
        let refusal = shares(annotations, &[ask(0, 8)], &[14, 14]).expect_err(sentence);
        assert!(refusal.contains(sentence), "{annotations:?}: {refusal}");
    }
}

#[test]
fn amounts_of_each_card_must_be_what_was_asked() {
    let each = |cards, memory| Ask {
        container: "c".into(),
        role: Role::Container,
        index: 0,
        amount: Amount::Each { cards, memory, percent: 30 },
    };
    let two = [(SPLIT, r#"{"0":{"0":7,"1":7}}"#)];
    assert_eq!(shares(&two, &[each(2, Memory::Percent(50))], &[14, 14]), Ok(vec![(0, 7), (1, 7)]));
    assert!(
        shares(&two, &[each(1, Memory::Percent(50))], &[14, 14])
            .unwrap_err()
            .contains("was given 2 cards, but asks for 1")
    );
    assert!(
        shares(&two, &[each(2, Memory::Percent(60))], &[14, 14])
            .unwrap_err()
            .contains("was given 7 units, but asks for 9")
    );
    assert_eq!(shares(&[(INDEX, "1")], &[each(1, Memory::Mib(3000))], &[14, 14]), Ok(vec![(1, 3)]));
    assert!(
        shares(&[(INDEX, "1")], &[each(2, Memory::Mib(3000))], &[14, 14])
            .unwrap_err()
            .contains("was given 1 cards, but asks for 2")
    );
}
