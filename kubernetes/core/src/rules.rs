//! Rules about nodes and GPUs in a pod's annotations, by HAMi's names.

use crate::gpus::{Gpu, Placement};
use crate::object::Texts;
use crate::refusal::{Refusal, quoted};

/// Which node comes first.
const NODES: &str = "hami.io/node-scheduler-policy";
/// Which GPU of a node comes first.
const GPUS: &str = "hami.io/gpu-scheduler-policy";
/// UUIDs of which each of the pod's GPUs has one.
const USE_UUID: &str = "nvidia.com/use-gpuuuid";
/// UUIDs that none of the pod's GPUs has.
const NO_UUID: &str = "nvidia.com/nouse-gpuuuid";
/// Parts of product names of which each of the pod's GPUs has one.
const USE_TYPE: &str = "nvidia.com/use-gputype";
/// Parts of product names that none of the pod's GPUs has.
const NO_TYPE: &str = "nvidia.com/nouse-gputype";

/// All annotations that are read.
pub const ANNOTATIONS: [&str; 6] = [NODES, GPUS, USE_UUID, NO_UUID, USE_TYPE, NO_TYPE];

/// What a pod's annotations say about its node and its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementRules {
    /// Which node comes first; `None`: as configured.
    pub nodes: Option<Placement>,
    /// Which GPU of a node comes first; `None`: as the node's label says.
    pub gpus: Option<Placement>,
    use_uuid: Option<Vec<String>>,
    no_uuid: Option<Vec<String>>,
    use_type: Option<Vec<String>>,
    no_type: Option<Vec<String>>,
}

impl PlacementRules {
    /// Parses a pod's annotations; others than [`ANNOTATIONS`] are ignored.
    ///
    /// # Errors
    /// An annotation is invalid.
    pub fn of(annotations: &Texts) -> Result<Self, Refusal> {
        let list = |name: &str, expected: &str, is_valid: fn(&str) -> bool| {
            let Some(text) = annotations.get(name) else { return Ok(None) };
            let items: Vec<String> = text.split(',').map(|item| item.trim().to_owned()).collect();
            match items.iter().all(|item| is_valid(item)) {
                true => Ok(Some(items)),
                false => Err(invalid(name, text, expected)),
            }
        };
        let uuids = |name| {
            let is_uuid = |item: &str| item.starts_with("GPU-") || item.starts_with("MIG-");
            list(name, "UUIDs such as `GPU-...`, joined by commas", is_uuid)
        };
        let types = |name| {
            let upper = |items: Vec<String>| items.iter().map(|it| it.to_uppercase()).collect();
            let found =
                list(name, "parts of product names, such as `A100,T4`", |it| !it.is_empty());
            found.map(|items| items.map(upper))
        };
        Ok(Self {
            nodes: annotations.get(NODES).map(|text| node_policy(text)).transpose()?,
            gpus: annotations.get(GPUS).map_or(Ok(None), |text| gpu_policy(text))?,
            use_uuid: uuids(USE_UUID)?,
            no_uuid: uuids(NO_UUID)?,
            use_type: types(USE_TYPE)?,
            no_type: types(NO_TYPE)?,
        })
    }

    /// Returns whether the pod may have this GPU. A rule about a UUID or a product name that the
    /// node does not report permits no GPU.
    #[must_use]
    pub fn permit(&self, gpu: &Gpu) -> bool {
        let has = |uuids: &[String]| gpu.uuid.as_ref().map(|uuid| uuids.contains(uuid));
        // HAMi writes names without the vendor's as `NVIDIA-Tesla T4`.
        let name = gpu.product.as_ref().map(|name| format!("NVIDIA-{}", name.to_uppercase()));
        let is_one = |types: &[String]| {
            name.as_ref().map(|name| types.iter().any(|part| name.contains(part.as_str())))
        };
        self.use_uuid.as_ref().is_none_or(|uuids| has(uuids) == Some(true))
            && self.no_uuid.as_ref().is_none_or(|uuids| has(uuids) == Some(false))
            && self.use_type.as_ref().is_none_or(|types| is_one(types) == Some(true))
            && self.no_type.as_ref().is_none_or(|types| is_one(types) == Some(false))
    }
}

fn node_policy(text: &str) -> Result<Placement, Refusal> {
    Placement::named(text.trim()).ok_or_else(|| invalid(NODES, text, "`binpack` or `spread`"))
}

/// Parses a list of policies, of which the first order counts. GPUs close to each other are always
/// preferred, so `numa` and `topology-aware` change nothing.
fn gpu_policy(text: &str) -> Result<Option<Placement>, Refusal> {
    let mut found = None;
    for name in text.split(',').map(str::trim) {
        match Placement::named(name) {
            Some(placement) => found = found.or(Some(placement)),
            None if ["numa", "topology-aware"].contains(&name) => {}
            None => {
                let expected = "`binpack`, `spread`, `numa` or `topology-aware`; for a GPU without \
                                other pods request all of its memory";
                return Err(invalid(GPUS, text, expected));
            }
        }
    }
    Ok(found)
}

fn invalid(name: &str, text: &str, expected: &str) -> Refusal {
    Refusal::new(format!("the annotation {name} is {}, expected {expected}", quoted(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::texts;

    fn gpu(uuid: Option<&str>, product: Option<&str>) -> Gpu {
        let text = |it: Option<&str>| it.map(str::to_owned);
        Gpu { uuid: text(uuid), product: text(product), ..Gpu::plain(0, 14) }
    }

    #[test]
    fn gpu_is_permitted_by_uuid_and_product_name() {
        let t4 = gpu(Some("GPU-a"), Some("Tesla T4"));
        let a100 = gpu(Some("GPU-b"), Some("NVIDIA A100-SXM4-40GB"));
        let unknown = gpu(None, None);
        for (annotations, expected) in [
            (&[][..], [true, true, true]),
            (&[(USE_UUID, "GPU-a")], [true, false, false]),
            (&[(USE_UUID, "GPU-x, GPU-b")], [false, true, false]),
            // A UUID is no part of another one, and has its case.
            (&[(USE_UUID, "GPU-,GPU-A,GPU-aa")], [false, false, false]),
            (&[(NO_UUID, "GPU-a")], [false, true, false]),
            (&[(USE_UUID, "GPU-a,GPU-b"), (NO_UUID, "GPU-a")], [false, true, false]),
            (&[(USE_TYPE, "t4")], [true, false, false]),
            (&[(USE_TYPE, "NVIDIA-Tesla T4")], [true, false, false]),
            (&[(USE_TYPE, "V100, A100-sxm4")], [false, true, false]),
            (&[(USE_TYPE, "nvidia")], [true, true, false]),
            (&[(NO_TYPE, "A100,V100")], [true, false, false]),
            (&[(USE_TYPE, "NVIDIA"), (NO_TYPE, "T4")], [false, true, false]),
            (&[(USE_UUID, "GPU-a"), (USE_TYPE, "A100")], [false, false, false]),
        ] {
            let rules = PlacementRules::of(&texts(annotations)).unwrap();
            let permitted = [&t4, &a100, &unknown].map(|gpu| rules.permit(gpu));
            assert_eq!(permitted, expected, "{annotations:?}");
        }
    }

    #[test]
    fn order_of_nodes_and_gpus_is_that_of_the_annotations() {
        let of = |nodes: &str, gpus: &str| {
            let rules = PlacementRules::of(&texts(&[(NODES, nodes), (GPUS, gpus)])).unwrap();
            (rules.nodes, rules.gpus)
        };
        let (binpack, spread) = (Some(Placement::Binpack), Some(Placement::Spread));
        assert_eq!(of("binpack", "spread"), (binpack, spread));
        assert_eq!(of(" spread ", "numa, binpack,spread"), (spread, binpack));
        assert_eq!(of("spread", "topology-aware"), (spread, None));
        let none = PlacementRules::of(&texts(&[("hami.io/other", "x")])).unwrap();
        assert_eq!(none, PlacementRules::default());
    }

    #[test]
    fn invalid_annotation_is_refused_by_name() {
        for (name, text, expected) in [
            (NODES, "", "is ``, expected `binpack` or `spread`"),
            (NODES, "Binpack", "is `Binpack`, expected"),
            (NODES, "binpack,spread", "expected `binpack` or `spread`"),
            (GPUS, "mutex", "is `mutex`, expected `binpack`, `spread`, `numa` or"),
            (GPUS, "binpack,", "is `binpack,`, expected"),
            (USE_UUID, "", "is ``, expected UUIDs such as `GPU-...`"),
            (USE_UUID, "GPU-a,", "expected UUIDs"),
            (NO_UUID, "0", "is `0`, expected UUIDs"),
            (USE_TYPE, "", "is ``, expected parts of product names"),
            (NO_TYPE, "A100,,T4", "expected parts of product names"),
        ] {
            let refusal = PlacementRules::of(&texts(&[(name, text)])).unwrap_err().to_string();
            assert!(refusal.contains(name) && refusal.contains(expected), "{refusal}");
        }
    }
}
