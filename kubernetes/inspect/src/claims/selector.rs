//! Selectors of devices, evaluated as the scheduler does.
//!
//! Quantities and versions are whole numbers here: selectors only compare them. The functions of
//! Kubernetes that are not defined here leave a device unchecked. So do long and deeply nested
//! expressions, because the interpreter recurses: authors of claims write them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use cel::extractors::This;
use cel::{Context, Env, ExecutionError, Program};
use cgpu_kubernetes_core::quantity;
use cgpu_kubernetes_dra::DRIVER;
use cgpu_kubernetes_dra::slices::{Attribute, Published};
use serde::Serialize;

use super::Device;

/// Longest expression in bytes that is evaluated. The API server accepts 10 KiB.
const MAX_LENGTH: usize = 2048;
/// Most brackets that are open at a time, and most conditional operators.
const MAX_DEPTH: usize = 16;
/// Stack with which [`MAX_LENGTH`] and [`MAX_DEPTH`] suffice, also without optimization.
const STACK_SIZE: usize = 64 << 20;

/// Whether a device is selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    Yes,
    No,
    /// The expression fails on the device, at the scheduler as well.
    Fails(String),
    /// The expression uses what is not defined here.
    Unchecked(String),
}

/// The selections of all devices, by expression.
pub(crate) struct Selectors<'a> {
    devices: &'a [Device],
    env: Arc<Env>,
    known: RefCell<BTreeMap<String, Rc<[Selection]>>>,
}

impl<'a> Selectors<'a> {
    pub(crate) fn new(devices: &'a [Device]) -> Self {
        Self { devices, env: Arc::new(Env::stdlib()), known: RefCell::default() }
    }

    /// Returns whether all expressions select the device at this position. They are evaluated in
    /// their order, and none after one that does not.
    pub(crate) fn select<'b>(
        &self,
        expressions: impl Iterator<Item = &'b str>,
        position: usize,
    ) -> Selection {
        let mut selection = Selection::Yes;
        for expression in expressions {
            match &self.selections(expression)[position] {
                Selection::Yes => {}
                unchecked @ Selection::Unchecked(_) => selection = unchecked.clone(),
                other => return other.clone(),
            }
        }
        selection
    }

    fn selections(&self, expression: &str) -> Rc<[Selection]> {
        if let Some(known) = self.known.borrow().get(expression) {
            return Rc::clone(known);
        }
        let all: Rc<[Selection]> = match evaluate(&self.env, expression, self.devices) {
            Ok(all) => all.into(),
            // The API server has accepted it.
            Err(error) => {
                let unchecked = Selection::Unchecked(format!("{expression}: {error}"));
                vec![unchecked; self.devices.len()].into()
            }
        };
        self.known.borrow_mut().insert(expression.to_owned(), Rc::clone(&all));
        all
    }
}

/// Evaluates an expression on all devices, with a stack of its own.
///
/// # Errors
/// Why it cannot be evaluated.
fn evaluate(
    env: &Arc<Env>,
    expression: &str,
    devices: &[Device],
) -> Result<Vec<Selection>, String> {
    if is_deep(expression) {
        return Err("it is too long or too deeply nested".to_owned());
    }
    let all = || {
        let program = env.compile(expression).map_err(|error| error.to_string())?;
        Ok(devices.iter().map(|device| selection(env, &program, expression, device)).collect())
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK_SIZE).spawn_scoped(scope, all);
        let thread = thread.map_err(|error| format!("no thread: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("the interpreter failed".to_owned()))
    })
}

fn selection(env: &Arc<Env>, program: &Program, expression: &str, device: &Device) -> Selection {
    let mut context = Context::with_env(Arc::clone(env));
    let is_defined = define(&mut context)
        && context.add_variable("device", Variable::of(&device.published, expression)).is_ok();
    match program.execute(&context) {
        Ok(cel::Value::Bool(true)) if is_defined => Selection::Yes,
        Ok(cel::Value::Bool(false)) if is_defined => Selection::No,
        Err(ExecutionError::NoSuchKey(key)) => {
            Selection::Fails(format!("{} has no {key}: {expression}", device.title()))
        }
        Ok(_) => Selection::Unchecked(expression.to_owned()),
        Err(error) => Selection::Unchecked(format!("{expression}: {error}")),
    }
}

fn is_deep(expression: &str) -> bool {
    let (mut open, mut depth) = (0_usize, 0_usize);
    for byte in expression.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        depth = depth.max(open);
    }
    let conditions = expression.bytes().filter(|byte| *byte == b'?').count();
    expression.len() > MAX_LENGTH || depth.max(conditions) > MAX_DEPTH
}

/// Defines the functions on quantities and versions.
fn define(context: &mut Context<'_, '_>) -> bool {
    let amount = |text: Arc<String>| {
        let amount = quantity::whole(&text).ok().and_then(|amount| i64::try_from(amount).ok());
        amount.ok_or_else(|| ExecutionError::function_error("quantity", "no whole quantity"))
    };
    let version = |text: Arc<String>| {
        let refused = || ExecutionError::function_error("semver", "not three numbers");
        version(&text).ok_or_else(refused)
    };
    [
        context.add_function("quantity", amount),
        context.add_function("semver", version),
        context
            .add_function("compareTo", |This(one): This<i64>, other: i64| one.cmp(&other) as i64),
        context.add_function("isGreaterThan", |This(one): This<i64>, other: i64| one > other),
        context.add_function("isLessThan", |This(one): This<i64>, other: i64| one < other),
        context.add_function("asInteger", |This(one): This<i64>| one),
    ]
    .iter()
    .all(Result::is_ok)
}

/// Returns a version as a number; none if it has more than three numbers below a million. What
/// follows `+` does not count in comparisons.
fn version(text: &str) -> Option<i64> {
    let text = text.split('+').next()?;
    let numbers: Vec<i64> = text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let is_small = numbers.iter().all(|number| (0..1_000_000).contains(number));
    match numbers[..] {
        [major, minor, patch] if is_small => Some((major * 1_000_000 + minor) * 1_000_000 + patch),
        _ => None,
    }
}

/// The variable `device` of an expression.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Variable<'a> {
    driver: &'static str,
    allow_multiple_allocations: bool,
    attributes: BTreeMap<&'a str, BTreeMap<&'a str, Scalar<'a>>>,
    capacity: BTreeMap<&'a str, BTreeMap<&'a str, Scalar<'a>>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Scalar<'a> {
    Text(&'a str),
    Whole(i64),
    Flag(bool),
}

impl<'a> Variable<'a> {
    fn of(device: &'a Published, expression: &'a str) -> Self {
        // A domain that a device does not have is empty. So any text of the expression is one.
        let texts = expression.split(['"', '\'']).skip(1).step_by(2);
        let domains = || texts.clone().chain([DRIVER]).map(|text| (text, BTreeMap::new()));
        let (mut attributes, mut capacity): (
            BTreeMap<_, BTreeMap<_, _>>,
            BTreeMap<_, BTreeMap<_, _>>,
        ) = (domains().collect(), domains().collect());
        let split = |name: &'a str| name.split_once('/').unwrap_or((DRIVER, name));
        for (name, value) in &device.attributes {
            let (domain, name) = split(name);
            let value = match value {
                Attribute::String(text) => Scalar::Text(text),
                Attribute::Int(number) => Scalar::Whole(*number),
                Attribute::Bool(flag) => Scalar::Flag(*flag),
                // A text that no comparison accepts leaves the device unchecked.
                Attribute::Version(text) => version(text).map_or(Scalar::Text(text), Scalar::Whole),
            };
            attributes.entry(domain).or_default().insert(name, value);
        }
        for (name, amount) in &device.capacity {
            let (domain, name) = split(name);
            let value = quantity::whole(&amount.value).ok().and_then(|it| i64::try_from(it).ok());
            let value = value.map_or(Scalar::Text(&amount.value), Scalar::Whole);
            capacity.entry(domain).or_default().insert(name, value);
        }
        Self {
            driver: DRIVER,
            allow_multiple_allocations: device.allow_multiple_allocations,
            attributes,
            capacity,
        }
    }
}
