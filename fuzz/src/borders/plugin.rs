//! Messages to the device plugin with any bytes: the kubelet's (protobuf) and `cgpu-runtime`'s
//! (JSON). Ids become one token, whose text is understood by all; a container gets ids that it was
//! offered; a slice is assigned to the container that requests as much.

use std::collections::BTreeSet;

use cgpu_kubelet_api::device_plugin::{AllocateRequest, PreferredAllocationRequest};
use cgpu_kubernetes_core::binding::{self, BindRequest};
use cgpu_kubernetes_core::devices;
use cgpu_kubernetes_core::gpus::NodeGpus;
use cgpu_kubernetes_core::names::{Dialect, Dialects, variable};
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::slice::{Slices, Token};
use prost::Message;

use super::extender;

fn check_allocate(request: &AllocateRequest) {
    for container in &request.container_requests {
        let ids = container.device_ids.iter().map(String::as_str);
        for dialect in [Dialect::Aliyun, Dialect::Hami] {
            let token = match Token::of_ids(dialect, ids.clone()) {
                Ok(token) => token,
                Err(refusal) => {
                    assert!(!refusal.message().is_empty() && refusal.message().len() < 1000);
                    continue;
                }
            };
            let text = token.to_string();
            assert!(text.len() <= 32 && Token::parse(&text) == Ok(token), "{text}");
            let given = binding::provisional(token);
            let value = |name: &str| {
                given.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str())
            };
            assert_eq!(binding::unbound(value), Some(text.as_str()));
        }
    }
}

fn check_preferred(request: PreferredAllocationRequest) {
    for container in request.container_requests {
        let (available, included) =
            (container.available_device_ids, container.must_include_device_ids);
        let size = usize::try_from(container.allocation_size).unwrap_or(0);
        let chosen =
            devices::preferred(available.clone(), included.clone(), size, |number| number % 2 == 0);
        assert!(chosen.len() <= size);
        assert!(chosen.iter().zip(&included).all(|(one, other)| one == other));
        let offered = |id: &String| included.contains(id) || available.contains(id);
        assert!(chosen.iter().all(offered), "{chosen:?}");
        let distinct = |ids: &[String]| ids.iter().collect::<BTreeSet<_>>().len() == ids.len();
        let is_plain = distinct(&available) && distinct(&included);
        assert!(!is_plain || distinct(&chosen), "{chosen:?}");
    }
}

fn check_bind(request: &BindRequest) {
    let Ok(token) = Token::parse(&request.slice) else { return };
    let node = NodeGpus::of(&extender::node());
    let mut cluster = extender::cluster();
    let mut slices = Slices::default();
    let mut pods = Vec::new();
    for (name, units) in [("p", 2), ("q", 5)] {
        let pod = extender::place(&mut cluster, extender::pod(name, units), "a").expect("room");
        pods.push((units, PodRequest::of(&pod, Dialects { hami: true }).expect("a request")));
    }
    for (units, pod) in &pods {
        let given = slices.assign(token, pod, &request.container, &node, None, |_| true);
        let Ok(given) = given else { continue };
        let value = |name| given.iter().find(|(other, _)| *other == name).map(|(_, value)| value);
        assert_eq!(request.container, "main");
        assert_eq!(value(variable::CONTAINER), Some(&units.to_string()));
        assert!(token.to_string().ends_with(&format!("-{units}")), "{token}");
        assert_eq!(slices.owner(token), Some(pod.uid.as_str()));
        // A plugin that starts anew restores the same.
        let mut restored = Slices::default();
        restored.restore(pod, &slices.annotation(&pod.uid).expect("it has a slice"), None);
        assert_eq!(restored.tokens().collect::<Vec<_>>(), [token]);
    }
    assert!(slices.tokens().count() <= 1, "a slice has one owner");
}

pub(crate) fn check(input: &[u8]) {
    if let Ok(request) = AllocateRequest::decode(input) {
        check_allocate(&request);
    }
    if let Ok(request) = PreferredAllocationRequest::decode(input) {
        check_preferred(request);
    }
    if let Ok(request) = serde_json::from_slice::<BindRequest>(input) {
        let line = serde_json::to_vec(&request).expect("a request can be written");
        assert_eq!(serde_json::from_slice::<BindRequest>(&line).ok().as_ref(), Some(&request));
        check_bind(&request);
    }
    if let Ok(text) = std::str::from_utf8(input) {
        let pod = PodRequest::of(&extender::pod("p", 2), Dialects::default()).expect("a request");
        let mut slices = Slices::default();
        slices.restore(&pod, text, None);
        assert!(slices.tokens().count() <= 1);
    }
}
