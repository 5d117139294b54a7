//! Slices that the kubelet gives out before it names their container, and how they reach it.
//!
//! The kubelet allocates ids for a container without saying which container it is. The device
//! plugin replies with a token. When the container is created, the runtime knows its pod and name
//! and sends them with the token. Pod, container and amount must agree; the pod's annotations say
//! which GPUs. An id belongs to one container at a time, so the smallest id of a slice identifies
//! it among the live ones.

use std::collections::BTreeMap;
use std::fmt;

use crate::checkpoint::Checkpoint;
use crate::container_request::{Amount, ContainerRequest};
use crate::devices;
use crate::gpus::NodeGpus;
use crate::names::Dialect;
use crate::pod_request::PodRequest;
use crate::refusal::{Refusal, quoted};
use crate::variables;

/// Prefix of the tokens of HAMi's resource, whose ids are numbers as well.
const HAMIS: &str = "hami.";

/// Identifies a slice by its resource, the smallest of its ids, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    dialect: Dialect,
    first: u64,
    count: u64,
}

impl Token {
    /// Returns the token of the ids that the kubelet gave to one container.
    ///
    /// # Errors
    /// There is no id, an id occurs twice, or an id is not one of this plugin's.
    pub fn of_ids<'a>(
        dialect: Dialect,
        ids: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Refusal> {
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
            Some(first) => Ok(Self { dialect, first: *first, count: numbers.len() as u64 }),
            None => Err(Refusal::new("the kubelet gave no ids")),
        }
    }

    /// Returns the dialect of its resource.
    #[must_use]
    pub fn dialect(self) -> Dialect {
        self.dialect
    }

    /// Parses what [`fmt::Display`] writes.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse = || {
            Refusal::new(format!(
                "the slice is called {}, which no device plugin wrote",
                quoted(text)
            ))
        };
        let (dialect, numbers) = match text.strip_prefix(HAMIS) {
            Some(numbers) => (Dialect::Hami, numbers),
            None => (Dialect::Aliyun, text),
        };
        let (first, count) = numbers.split_once('-').ok_or_else(refuse)?;
        match (devices::number(first), devices::number(count)) {
            (Some(first), Some(count)) if count > 0 => Ok(Self { dialect, first, count }),
            _ => Err(refuse()),
        }
    }
}

/// Writes the token as in variables and names of CDI devices: at most 32 characters.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = if self.dialect == Dialect::Hami { HAMIS } else { "" };
        write!(f, "{subject}{}-{}", devices::id(self.first), devices::id(self.count))
    }
}

/// The container that has a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    token: Token,
    uid: String,
    container: String,
}

/// Owners of slices. If they are lost, the next request of each container restores its own.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    /// Owners by the smallest id of their slices.
    owners: BTreeMap<(Dialect, u64), Owner>,
}

impl Slices {
    /// Restores the slices that an earlier plugin assigned, from the value of a pod's annotation
    /// [`crate::names::annotation::SLICES`]. Entries that do not match the containers' requests are
    /// ignored, and so are those of slices or containers that are assigned already, and those that
    /// the kubelet's checkpoint does not confirm.
    pub fn restore(&mut self, pod: &PodRequest, annotation: &str, checkpoint: Option<&Checkpoint>) {
        let tokens: BTreeMap<String, String> = serde_json::from_str(annotation).unwrap_or_default();
        for request in pod.requests.as_deref().unwrap_or_default() {
            let token = tokens.get(&request.container).and_then(|token| Token::parse(token).ok());
            let is_given = |token: &Token| {
                counted(request) == (token.dialect, token.count)
                    && checkpoint.is_none_or(|it| it.confirms(*token, &pod.uid, &request.container))
            };
            let Some(token) = token.filter(is_given) else { continue };
            let owner = Owner { token, uid: pod.uid.clone(), container: request.container.clone() };
            let is_known =
                |other: &Owner| other.uid == owner.uid && other.container == owner.container;
            if !self.owners.values().any(is_known) {
                self.owners.entry((token.dialect, token.first)).or_insert(owner);
            }
        }
    }

    /// Returns the value of the pod's annotation, or `None` if it has no slice.
    #[must_use]
    pub fn annotation(&self, uid: &str) -> Option<String> {
        let own = self.owners.values().filter(|owner| owner.uid == uid);
        let tokens: BTreeMap<&str, String> =
            own.map(|owner| (owner.container.as_str(), owner.token.to_string())).collect();
        // Serializing a map of strings cannot fail.
        (!tokens.is_empty()).then(|| serde_json::to_string(&tokens).unwrap_or_default())
    }

    /// Returns the uid of the pod that has this slice, or one that begins with the same id.
    #[must_use]
    pub fn owner(&self, token: Token) -> Option<&str> {
        self.owners.get(&(token.dialect, token.first)).map(|owner| owner.uid.as_str())
    }

    /// Returns the tokens of all assigned slices.
    pub fn tokens(&self) -> impl Iterator<Item = Token> {
        self.owners.values().map(|owner| owner.token)
    }

    /// Returns whether a slice that begins with this id is assigned.
    #[must_use]
    pub fn begins(&self, dialect: Dialect, id: u64) -> bool {
        self.owners.contains_key(&(dialect, id))
    }

    /// Drops the slices of pods for which `exists` is false.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.owners.retain(|_, owner| exists(&owner.uid));
    }

    /// Assigns a slice to a container; repeating it is harmless. `exists` says whether a pod still
    /// exists: the kubelet reuses the ids of one that does not.
    ///
    /// # Errors
    /// The pod is not on this node or has no GPUs of it, the container requests another amount, the
    /// kubelet has given the slice to another container, or the slice belongs to another container,
    /// or the container has another slice.
    pub fn assign(
        &mut self,
        token: Token,
        pod: &PodRequest,
        container: &str,
        node: &NodeGpus,
        checkpoint: Option<&Checkpoint>,
        exists: impl Fn(&str) -> bool,
    ) -> Result<Vec<(&'static str, String)>, Refusal> {
        let title = format!("container `{container}` of {}", pod.title());
        if pod.bound.as_deref() != Some(node.name.as_str()) {
            return Err(Refusal::new(format!("{title} is not bound to node `{}`", node.name)));
        }
        let requests = pod.requests.as_ref().map_err(Clone::clone)?;
        let (dialect, units) = requests
            .iter()
            .find(|request| request.container == container)
            .map_or((Dialect::Aliyun, 0), counted);
        if dialect != token.dialect {
            return Err(Refusal::new(format!(
                "the slice {token} is of another resource than {title} requests"
            )));
        }
        if units != token.count {
            return Err(Refusal::new(format!(
                "{title} requests {units} units, but the kubelet counted {} for it",
                token.count
            )));
        }
        let variables = variables::of(pod, container, node)?
            .ok_or_else(|| Refusal::new(format!("{title} requests nothing")))?;
        self.retain(exists);
        let own = Owner { token, uid: pod.uid.clone(), container: container.to_owned() };
        let key = (token.dialect, token.first);
        if let Some(owner) = self
            .owners
            .get(&key)
            .filter(|owner| **owner != own && !may_take_over(requests, owner, &own))
        {
            return Err(Refusal::new(format!(
                "the slice {token} belongs to container `{}` of pod {}, not to {title}",
                owner.container, owner.uid
            )));
        }
        let another = self.owners.iter().find(|(at, owner)| {
            **at != key && owner.uid == own.uid && owner.container == own.container
        });
        if let Some((_, Owner { token: other, .. })) = another {
            return Err(Refusal::new(format!(
                "{title} already has the slice {other}, not {token}"
            )));
        }
        if checkpoint.is_some_and(|checkpoint| !checkpoint.confirms(token, &pod.uid, container)) {
            return Err(Refusal::new(format!(
                "the kubelet has not given the slice {token} to {title}"
            )));
        }
        self.owners.insert(key, own);
        Ok(variables)
    }
}

/// Returns whether `own` may take the slice of `owner`. The kubelet reuses an init container's ids
/// for later containers of the pod, and gives them back when the pod's sandbox is recreated.
fn may_take_over(requests: &[ContainerRequest], owner: &Owner, own: &Owner) -> bool {
    let is_init = |name: &str| {
        requests
            .iter()
            .any(|request| request.container == name && request.role == crate::share::Role::Init)
    };
    owner.uid == own.uid && (is_init(&owner.container) || is_init(&own.container))
}

/// Returns the ids that the kubelet counts for a container.
fn counted(request: &ContainerRequest) -> (Dialect, u64) {
    match request.amount {
        Amount::InAll { units, .. } => (Dialect::Aliyun, units),
        Amount::Each { gpus, .. } => (Dialect::Hami, gpus as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::NodeAccounting;
    use crate::claim;
    use crate::fixture::{container, node, sharing};
    use crate::names::{Dialects, MEMORY};
    use crate::object::Pod;

    fn here() -> NodeGpus {
        NodeGpus::of(&node("n", "GiB", &[15109, 15109]))
    }

    fn placed(mut pod: Pod) -> PodRequest {
        let waiting = PodRequest::of(&pod, Dialects::default()).unwrap();
        claim::claim(&waiting, &here(), &NodeAccounting::of(&here(), []), 1)
            .unwrap()
            .apply(&mut pod);
        pod.spec.node_name = "n".into();
        PodRequest::of(&pod, Dialects::default()).unwrap()
    }

    fn token(ids: &[&str]) -> Token {
        Token::of_ids(Dialect::Aliyun, ids.iter().copied()).unwrap()
    }

    fn given(
        slices: &mut Slices,
        ids: &[&str],
        pod: &PodRequest,
        container: &str,
    ) -> Result<String, String> {
        let given = slices.assign(token(ids), pod, container, &here(), None, |_| true);
        given.map(|variables| variables[3].1.clone()).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn token_of_ids_round_trips() {
        assert_eq!(token(&["a1", "7", "z"]).to_string(), "7-3");
        assert_eq!(Token::parse("7-3"), Ok(token(&["a1", "7", "z"])));
        let longest = Token { dialect: Dialect::Hami, first: u64::MAX, count: u64::MAX };
        assert_eq!(Token::parse(&longest.to_string()), Ok(longest));
        assert_eq!(longest.to_string().len(), 32);
        assert_eq!(Token::of_ids(Dialect::Hami, ["7"]).unwrap().to_string(), "hami.7-1");
        for text in
            ["", "7", "7-", "-3", "7-0", "7-3-1", "hami.7", "hami.hami.7-1", "07-3", "A-1", "7 -3"]
        {
            assert!(Token::parse(text).is_err(), "{text}");
        }
        for ids in [&[][..], &["1", "1"], &["GPU-x-_-1"], &[""]] {
            assert!(Token::of_ids(Dialect::Aliyun, ids.iter().copied()).is_err(), "{ids:?}");
        }
    }

    /// gpushare confuses containers of equal sizes.
    #[test]
    fn slice_belongs_to_one_container() {
        let mut two = sharing("p", 2);
        two.spec.containers.push(container("second", &[(MEMORY, "2")]));
        let (pod, other) = (placed(two), placed(sharing("q", 2)));
        let mut slices = Slices::default();
        // The first request assigns, in any order of containers and ids.
        assert_eq!(given(&mut slices, &["5", "4"], &pod, "second"), Ok("2".into()));
        assert_eq!(given(&mut slices, &["1", "2"], &pod, "main"), Ok("2".into()));
        // A container that restarts gets the same reply.
        assert_eq!(given(&mut slices, &["4", "5"], &pod, "second"), Ok("2".into()));
        assert_eq!(
            given(&mut slices, &["4", "5"], &other, "main").unwrap_err(),
            "the slice 4-2 belongs to container `second` of pod uid-p, not to container `main` of \
             test/q"
        );
        assert_eq!(
            given(&mut slices, &["8", "9"], &pod, "main").unwrap_err(),
            "container `main` of test/p already has the slice 8-2, not 8-2"
                .replacen("8-2", "1-2", 1)
        );
        assert_eq!(
            given(&mut slices, &["8"], &other, "main").unwrap_err(),
            "container `main` of test/q requests 2 units, but the kubelet counted 1 for it"
        );
        assert!(
            given(&mut slices, &["8", "9"], &other, "sidecar")
                .unwrap_err()
                .contains("requests 0 units")
        );
        assert!(
            slices
                .assign(
                    Token::of_ids(Dialect::Hami, ["8", "9"]).unwrap(),
                    &other,
                    "main",
                    &here(),
                    None,
                    |_| true
                )
                .unwrap_err()
                .message()
                .starts_with(
                    "the slice hami.8-2 is of another resource than container `main` of test/q \
                     requests"
                )
        );
        // When a pod is gone, its ids are used again.
        let again =
            slices.assign(token(&["4", "5"]), &other, "main", &here(), None, |uid| uid != "uid-p");
        assert!(again.is_ok(), "{again:?}");
    }

    #[test]
    fn slice_of_the_checkpoint_belongs_to_no_other_container() {
        let (pod, other) = (placed(sharing("p", 2)), placed(sharing("q", 2)));
        let checkpoint = |uid: &str| {
            let text = format!(
                r#"{{"Data":{{"PodDeviceEntries":[{{"PodUID":"{uid}","ContainerName":"main",
                "ResourceName":"{MEMORY}","DeviceIDs":{{"-1":["4","5"]}}}}]}}}}"#
            );
            Checkpoint::parse(text.as_bytes()).unwrap()
        };
        let of_pod = checkpoint("uid-p");
        let mut slices = Slices::default();
        slices.restore(&other, r#"{"main":"4-2"}"#, Some(&of_pod));
        let mut given = |pod| {
            slices.assign(token(&["4", "5"]), pod, "main", &here(), Some(&of_pod), |_| true).is_ok()
        };
        assert!(!given(&other) && given(&pod) && !given(&other));
    }

    #[test]
    fn slices_are_restored_from_annotations() {
        let (pod, other) = (placed(sharing("p", 2)), placed(sharing("q", 2)));
        let mut slices = Slices::default();
        assert!(given(&mut slices, &["4", "5"], &pod, "main").is_ok());
        let tokens = slices.annotation("uid-p").unwrap();
        assert_eq!((tokens.as_str(), slices.annotation("uid-q")), (r#"{"main":"4-2"}"#, None));
        let mut after = Slices::default();
        after.restore(&pod, &tokens, None);
        assert_eq!(after.annotation("uid-p"), Some(tokens));
        assert!(
            given(&mut after, &["4", "5"], &other, "main").unwrap_err().contains("of pod uid-p")
        );
        assert!(
            given(&mut after, &["6", "7"], &pod, "main").unwrap_err().contains("has the slice 4-2")
        );
        assert!(given(&mut after, &["4", "5"], &pod, "main").is_ok());
        // An edited annotation takes nothing from another pod, nor from its own.
        after.restore(&other, r#"{"main":"4-2","x":"y"}"#, None);
        after.restore(&other, r#"{"main":"9-3","none":"9-2"}"#, None);
        after.restore(&pod, r#"{"main":"8-2"}"#, None);
        after.restore(&pod, "no JSON", None);
        assert_eq!(after.annotation("uid-q"), None);
        assert!(given(&mut after, &["4", "5"], &pod, "main").is_ok());
        after.retain(|uid| uid != "uid-p");
        assert_eq!(after.owner(token(&["4", "5"])), None);
    }

    #[test]
    fn ids_of_an_init_container_are_reused_by_later_containers() {
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
    fn pod_that_bypassed_the_extender_gets_no_slice() {
        let mut pod = sharing("p", 2);
        pod.spec.node_name = "n".into();
        let bypassed = PodRequest::of(&pod, Dialects::default()).unwrap();
        assert!(
            given(&mut Slices::default(), &["1", "2"], &bypassed, "main")
                .unwrap_err()
                .contains("bypassed the scheduler extender")
        );
        pod.spec.node_name = "m".into();
        let elsewhere = PodRequest::of(&pod, Dialects::default()).unwrap();
        assert_eq!(
            given(&mut Slices::default(), &["1", "2"], &elsewhere, "main").unwrap_err(),
            "container `main` of test/p is not bound to node `n`"
        );
    }
}
