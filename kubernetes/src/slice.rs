//! Slices that are handed out before anybody knows to whom, and how they come to their containers.
//!
//! The kubelet asks for a container's ids before it tells anybody which container that is. What it gets is a token. When the container is made, the
//! runtime knows who it is and asks whose the token is: then pod, container and amount must agree, and the pod's annotations say which
//! cards. An id is one container's at a time, so the smallest of a container's ids tells its slice from all others that live.

use std::collections::BTreeMap;
use std::fmt;

use crate::ask::{Amount, Ask};
use crate::cards::NodeCards;
use crate::claimant::Claimant;
use crate::devices;
use crate::refusal::{Refusal, quoted};
use crate::variables;

/// A slice that is nobody's yet, or a container's: its smallest id, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    first: u64,
    count: u64,
}

impl Token {
    /// Of what the kubelet gives to one container.
    ///
    /// # Errors
    /// There is none, one twice, or one that nobody told the kubelet of.
    pub fn of_ids<'a>(ids: impl IntoIterator<Item = &'a str>) -> Result<Self, Refusal> {
        let mut numbers = Vec::new();
        for id in ids {
            let number = devices::number(id);
            numbers.push(number.ok_or_else(|| {
                Refusal::new(format!(
                    "the kubelet gave the id {}, which is none of this plugin's",
                    quoted(id)
                ))
            })?);
        }
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Refusal::new("the kubelet gave an id twice"));
        }
        match numbers.first() {
            Some(first) => Ok(Self { first: *first, count: numbers.len() as u64 }),
            None => Err(Refusal::new("the kubelet gave no ids")),
        }
    }

    /// Reads what was written.
    ///
    /// # Errors
    /// It is not what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse =
            || Refusal::new(format!("the slice is called {}, which no device plugin wrote", quoted(text)));
        let (first, count) = text.split_once('-').ok_or_else(refuse)?;
        match (devices::number(first), devices::number(count)) {
            (Some(first), Some(count)) if count > 0 => Ok(Self { first, count }),
            _ => Err(refuse()),
        }
    }
}

/// As it stands in a variable and in a CDI device's name: at most 27 characters.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", devices::id(self.first), devices::id(self.count))
    }
}

/// Whose slices are. Nothing is lost with it: who asks again is told again.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    /// By smallest id: how many, the pod's uid, the container's name.
    owners: BTreeMap<u64, (u64, String, String)>,
}

impl Slices {
    /// Gives a slice to a container, or says again that it is its. `lives` says whether a pod is still there: its ids are the kubelet's to give again when it
    /// is not.
    ///
    /// # Errors
    /// The pod is not on this node or has no cards of it, the container asks for another amount, or one of the two is another's.
    pub fn give(
        &mut self,
        token: Token,
        pod: &Claimant,
        container: &str,
        node: &NodeCards,
        lives: impl Fn(&str) -> bool,
    ) -> Result<Vec<(&'static str, String)>, Refusal> {
        let title = format!("container `{container}` of {}", pod.title());
        if pod.bound.as_deref() != Some(node.name.as_str()) {
            return Err(Refusal::new(format!("{title} is not bound to node `{}`", node.name)));
        }
        let asks = pod.asks.as_ref().map_err(Clone::clone)?;
        let units = asks.iter().find(|ask| ask.container == container).map_or(0, counted);
        if units != token.count {
            return Err(Refusal::new(format!(
                "{title} asks for {units} units, but the kubelet counted {} for it",
                token.count
            )));
        }
        let variables = variables::of(pod, container, node)?
            .ok_or_else(|| Refusal::new(format!("{title} asks for nothing")))?;
        self.owners.retain(|_, (_, uid, _)| lives(uid));
        let own = (token.count, pod.uid.clone(), container.to_owned());
        if let Some((_, uid, name)) =
            self.owners.get(&token.first).filter(|owner| **owner != own && !may_take_over(asks, owner, &own))
        {
            return Err(Refusal::new(format!(
                "the slice {token} is container `{name}`'s of pod {uid}, not {title}'s"
            )));
        }
        let another = self
            .owners
            .iter()
            .find(|(first, owner)| **first != token.first && owner.1 == own.1 && owner.2 == own.2);
        if let Some((first, (count, ..))) = another {
            let other = Token { first: *first, count: *count };
            return Err(Refusal::new(format!("{title} has the slice {other} already, and not {token}")));
        }
        self.owners.insert(token.first, own);
        Ok(variables)
    }
}

/// The kubelet gives an init container's ids to the containers after it, in the same pod; and when the pod's sandbox is made anew, they are the
/// init container's again.
fn may_take_over(asks: &[Ask], owner: &(u64, String, String), own: &(u64, String, String)) -> bool {
    let is_init =
        |name: &str| asks.iter().any(|ask| ask.container == name && ask.role == crate::share::Role::Init);
    owner.1 == own.1 && (is_init(&owner.2) || is_init(&own.2))
}

/// Ids that the kubelet counts for a container.
fn counted(ask: &Ask) -> u64 {
    match ask.amount {
        Amount::InAll { units, .. } => units,
        Amount::Each { cards, .. } => cards as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::NodeBooks;
    use crate::claim;
    use crate::doubles::{container, node, sharing};
    use crate::names::{Dialects, MEMORY};
    use crate::object::Pod;

    fn here() -> NodeCards {
        NodeCards::of(&node("n", "GiB", &[15109, 15109]))
    }

    fn placed(mut pod: Pod) -> Claimant {
        let waiting = Claimant::of(&pod, Dialects::default()).unwrap();
        claim::claim(&waiting, &here(), &NodeBooks::of(&here(), []), 1).unwrap().apply(&mut pod);
        pod.spec.node_name = "n".into();
        Claimant::of(&pod, Dialects::default()).unwrap()
    }

    fn token(ids: &[&str]) -> Token {
        Token::of_ids(ids.iter().copied()).unwrap()
    }

    fn given(slices: &mut Slices, ids: &[&str], pod: &Claimant, container: &str) -> Result<String, String> {
        let given = slices.give(token(ids), pod, container, &here(), |_| true);
        given.map(|variables| variables[3].1.clone()).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_token_is_made_from_ids_and_read_again() {
        assert_eq!(token(&["a1", "7", "z"]).to_string(), "7-3");
        assert_eq!(Token::parse("7-3"), Ok(token(&["a1", "7", "z"])));
        let longest = Token { first: u64::MAX, count: u64::MAX };
        assert_eq!(Token::parse(&longest.to_string()), Ok(longest));
        assert!(longest.to_string().len() <= 27);
        for text in ["", "7", "7-", "-3", "7-0", "7-3-1", "07-3", "A-1", "7 -3"] {
            assert!(Token::parse(text).is_err(), "{text}");
        }
        for ids in [&[][..], &["1", "1"], &["GPU-x-_-1"], &[""]] {
            assert!(Token::of_ids(ids.iter().copied()).is_err(), "{ids:?}");
        }
    }

    /// Equal sizes are what gpushare mixes up.
    #[test]
    fn a_slice_is_its_containers_and_nobody_elses() {
        let mut two = sharing("p", 2);
        two.spec.containers.push(container("second", &[(MEMORY, "2")]));
        let (pod, other) = (placed(two), placed(sharing("q", 2)));
        let mut slices = Slices::default();
        // Whoever asks first: the second container, then the first, in any order of ids.
        assert_eq!(given(&mut slices, &["5", "4"], &pod, "second"), Ok("2".into()));
        assert_eq!(given(&mut slices, &["1", "2"], &pod, "main"), Ok("2".into()));
        // A container that restarts is told again.
        assert_eq!(given(&mut slices, &["4", "5"], &pod, "second"), Ok("2".into()));
        assert_eq!(
            given(&mut slices, &["4", "5"], &other, "main").unwrap_err(),
            "the slice 4-2 is container `second`'s of pod uid-p, not container `main` of test/q's"
        );
        assert_eq!(
            given(&mut slices, &["8", "9"], &pod, "main").unwrap_err(),
            "container `main` of test/p has the slice 8-2 already, and not 8-2".replacen("8-2", "1-2", 1)
        );
        assert_eq!(
            given(&mut slices, &["8"], &other, "main").unwrap_err(),
            "container `main` of test/q asks for 2 units, but the kubelet counted 1 for it"
        );
        assert!(given(&mut slices, &["8", "9"], &other, "sidecar").unwrap_err().contains("asks for 0 units"));
        // When a pod has gone its ids are given again.
        let again = slices.give(token(&["4", "5"]), &other, "main", &here(), |uid| uid != "uid-p");
        assert!(again.is_ok(), "{again:?}");
    }

    #[test]
    fn an_init_containers_ids_go_on_to_those_after_it_and_back() {
        let mut pod = sharing("p", 2);
        pod.spec.init_containers = vec![container("init", &[(MEMORY, "2")])];
        let pod = placed(pod);
        let mut slices = Slices::default();
        assert!(given(&mut slices, &["1", "2"], &pod, "init").is_ok());
        assert!(given(&mut slices, &["1", "2"], &pod, "main").is_ok());
        assert!(given(&mut slices, &["1", "2"], &pod, "init").is_ok());
        assert!(given(&mut slices, &["1", "2"], &pod, "main").is_ok());
    }

    #[test]
    fn who_came_past_the_extender_gets_no_slice() {
        let mut pod = sharing("p", 2);
        pod.spec.node_name = "n".into();
        let bypassed = Claimant::of(&pod, Dialects::default()).unwrap();
        assert!(
            given(&mut Slices::default(), &["1", "2"], &bypassed, "main")
                .unwrap_err()
                .contains("came past the scheduler extender")
        );
        pod.spec.node_name = "m".into();
        let elsewhere = Claimant::of(&pod, Dialects::default()).unwrap();
        assert_eq!(
            given(&mut Slices::default(), &["1", "2"], &elsewhere, "main").unwrap_err(),
            "container `main` of test/p is not bound to node `n`"
        );
    }
}
