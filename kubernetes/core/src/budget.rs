//! Disruption budgets: how many pods of a selection may be evicted at present.

use serde::Deserialize;

use crate::object::{Metadata, Texts, nullable};
use crate::pod_request::PodRequest;

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Name and namespace.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// Which pods it protects.
    #[serde(deserialize_with = "nullable")]
    pub spec: BudgetSpec,
    /// How many of them may be evicted.
    #[serde(deserialize_with = "nullable")]
    pub status: BudgetStatus,
}

/// Specification of a budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BudgetSpec {
    /// Pods of its namespace; none without a selector, all with an empty one.
    pub selector: Option<Selector>,
}

/// Status of a budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// Number of pods that may be evicted now.
    #[serde(deserialize_with = "nullable")]
    pub disruptions_allowed: i32,
}

/// A selection of pods by their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    /// Labels that a pod must have.
    #[serde(deserialize_with = "nullable")]
    pub match_labels: Texts,
    /// Conditions, all of which must hold.
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<Expression>,
}

/// A condition on a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Expression {
    /// Name of the label.
    #[serde(deserialize_with = "nullable")]
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    #[serde(deserialize_with = "nullable")]
    pub operator: String,
    /// Values for the first two.
    #[serde(deserialize_with = "nullable")]
    pub values: Vec<String>,
}

impl Budget {
    /// Returns whether it protects a pod.
    #[must_use]
    pub fn protects(&self, pod: &PodRequest) -> bool {
        self.metadata.namespace == pod.namespace
            && self.spec.selector.as_ref().is_some_and(|selector| selector.selects(pod))
    }

    /// Returns how many of its pods may be evicted now.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        u64::try_from(self.status.disruptions_allowed).unwrap_or(0)
    }
}

impl Selector {
    fn selects(&self, pod: &PodRequest) -> bool {
        let label = |name: &str| pod.eviction.label(name);
        self.match_labels.iter().all(|(name, value)| label(name) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|expression| expression.holds(label(&expression.key)))
    }
}

impl Expression {
    /// Returns whether it holds for a label's value. An operator of a later version holds: rather
    /// one pod too many is protected.
    fn holds(&self, value: Option<&str>) -> bool {
        let is_listed = value.is_some_and(|value| self.values.iter().any(|it| it == value));
        match self.operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{sharing, texts};
    use crate::names::Dialects;
    use serde_json::json;

    #[test]
    fn budget_protects_the_pods_that_its_selector_selects() {
        let mut pod = sharing("p", 1);
        pod.metadata.labels = texts(&[("app", "a"), ("tier", "b")]);
        let pod = PodRequest::of(&pod, Dialects::default()).unwrap();
        for (selector, protects) in [
            (json!(null), false),
            (json!({}), true),
            (json!({"matchLabels": {"app": "a"}}), true),
            (json!({"matchLabels": {"app": "a", "tier": "c"}}), false),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["b"]}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["a"]}]}),
                true,
            ),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false),
            (json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}), true),
        ] {
            let budget = |namespace: &str| -> Budget {
                serde_json::from_value(json!({"metadata": {"namespace": namespace},
                    "spec": {"selector": selector}, "status": {"disruptionsAllowed": -1}}))
                .unwrap()
            };
            assert_eq!(budget("test").protects(&pod), protects, "{selector}");
            assert!(!budget("other").protects(&pod));
            assert_eq!(budget("test").allowed(), 0);
        }
    }
}
