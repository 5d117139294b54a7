//! What a request takes of a device, and whether the device has it.

use std::collections::BTreeMap;

use cgpu_kubernetes_core::object::Written;
use cgpu_kubernetes_core::quantity;
use cgpu_kubernetes_dra::capacity::{CORES, MEMORY, WEIGHT};
use cgpu_kubernetes_dra::slices::{RequestPolicy, Taint};

use super::object::{Alternative, Toleration};
use super::{Device, bare};

/// Why a device does not fit a request. A later one is nearer to a fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    Unselected,
    Tainted,
    /// It has no such capacity, or gives no such amount of it.
    OtherMode,
    TooSmall,
    /// A claim without amounts has it.
    Whole,
    Cores,
    Weight,
    Memory,
    /// It fits, but the node has too few such devices.
    TooFew,
}

/// A lack with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    pub(crate) lack: Lack,
    /// Of the amount that is missing: what is free, or what the device has.
    pub(crate) available: u64,
    pub(crate) detail: String,
}

impl Misfit {
    pub(crate) fn new(lack: Lack, available: u64, detail: impl Into<String>) -> Self {
        Self { lack, available, detail: detail.into() }
    }
}

/// Returns how many times a device has what is requested, at least once.
pub(crate) fn count(request: &Alternative, device: &Device) -> Result<u64, Misfit> {
    if let Some(taint) = device.published.taints.iter().find(|it| !is_tolerated(it, request)) {
        return Err(Misfit::new(Lack::Tainted, 0, format!("taint {}", super::taint(taint))));
    }
    let requested: BTreeMap<&str, &Written> =
        request.capacity.requests.iter().map(|(name, amount)| (bare(name), amount)).collect();
    let unknown = requested.keys().find(|name| !device.published.capacity.contains_key(**name));
    if let Some(name) = unknown {
        let mode = device.text("mode");
        return Err(Misfit::new(Lack::OtherMode, 0, format!("no {name}, mode {mode}")));
    }
    if !device.published.allow_multiple_allocations {
        let is_used = device.shares > 0;
        return if is_used { Err(Misfit::new(Lack::Whole, 0, "in use as a whole")) } else { Ok(1) };
    }
    let mut needs = Vec::new();
    for (name, amount) in &device.published.capacity {
        let total = quantity::whole(&amount.value).unwrap_or(0);
        let wanted = match requested.get(name.as_str()) {
            Some(written) => quantity::whole(&written.0)
                .map_err(|invalid| Misfit::new(Lack::OtherMode, 0, invalid.of(name, &written.0)))?,
            None => match &amount.request_policy {
                Some(policy) => quantity::whole(&policy.default).unwrap_or(total),
                None => total,
            },
        };
        let need = match &amount.request_policy {
            Some(policy) => rounded(wanted, policy).map_err(|most| {
                let mode = device.text("mode");
                // A GPU that gives cores gives each claim the weight 1.
                let has_cores = device.published.capacity.contains_key(CORES);
                let lack = match name.as_str() {
                    WEIGHT if has_cores => Lack::OtherMode,
                    _ => Lack::TooSmall,
                };
                Misfit::new(lack, most, format!("{name} at most {most}, mode {mode}"))
            })?,
            None => wanted,
        };
        needs.push((name.as_str(), need, total));
    }
    let amounts = |name: &str, word: &str, part: u64, need: u64| match name {
        MEMORY => {
            format!("{} MiB{word}, {} requested", part >> 20, need.div_ceil(1 << 20))
        }
        CORES => format!("{part} % of the cores{word}, {need} requested"),
        _ => format!("{name} {part}{word}, {need} requested"),
    };
    for (name, need, total) in &needs {
        if need > total {
            let detail = format!("has {}", amounts(name, "", *total, *need));
            return Err(Misfit::new(Lack::TooSmall, *total, detail));
        }
    }
    if device.whole > 0 {
        return Err(Misfit::new(Lack::Whole, 0, "in use as a whole"));
    }
    let mut count = u64::MAX;
    for (name, need, total) in &needs {
        let free = total.saturating_sub(device.consumed(name));
        if *need > free {
            let lack = match *name {
                CORES => Lack::Cores,
                WEIGHT => Lack::Weight,
                _ => Lack::Memory,
            };
            return Err(Misfit::new(lack, free, amounts(name, " free", free, *need)));
        }
        count = count.min(free.checked_div(*need).unwrap_or(u64::MAX));
    }
    Ok(count)
}

/// Rounds an amount as the API server's policy says.
///
/// # Errors
/// The largest amount, if it is more than that.
fn rounded(wanted: u64, policy: &RequestPolicy) -> Result<u64, u64> {
    let range = &policy.valid_range;
    let whole = |text: &Option<String>| text.as_deref().and_then(|it| quantity::whole(it).ok());
    let min = quantity::whole(&range.min).unwrap_or(0);
    let step = whole(&range.step).unwrap_or(1).max(1);
    let steps = wanted.saturating_sub(min).div_ceil(step);
    let amount = min.saturating_add(steps.saturating_mul(step));
    match whole(&range.max) {
        Some(max) if amount > max => Err(max),
        _ => Ok(amount),
    }
}

fn is_tolerated(taint: &Taint, request: &Alternative) -> bool {
    let tolerates = |toleration: &Toleration| {
        let is_same = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
        let is_value = toleration.operator == "Exists" || toleration.value == taint.value;
        is_same(&toleration.key, &taint.key)
            && is_same(&toleration.effect, &taint.effect)
            && is_value
    };
    !matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
        || request.tolerations.iter().any(tolerates)
}
