//! Evaluates an admission policy as an API server does.

use std::collections::HashMap;
use std::sync::Arc;

use cel::common::types::{CelNull, STRING_TYPE};
use cel::extractors::This;
use cel::{Context, Env, Program, StructDef, extensions};
use cgpu_kubernetes_core::quantity;
use serde_json::{Map, Value, json};

use crate::requests::{GROWER, NAMESPACES, Operation, Request, objects};

/// A policy, compiled.
pub(crate) struct Policy {
    env: Arc<Env>,
    rules: Vec<Value>,
    conditions: Vec<Program>,
    variables: Vec<(String, Program)>,
    validations: Vec<Validation>,
    mutations: Vec<Program>,
}

struct Validation {
    holds: Program,
    message: String,
    /// Makes the message that the user sees.
    details: Option<Program>,
}

/// Why a policy refuses a request.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Names the validation: its fixed message.
    pub(crate) rule: String,
    /// What the user sees.
    pub(crate) message: String,
}

/// Returns the environment of an API server, as far as the policies use it.
fn environment() -> Env {
    let mut env = Env::stdlib();
    env.add_extension(extensions::lists).expect("an extension");
    env.add_extension(extensions::strings).expect("an extension");
    let patch = StructDef::new("JSONPatch".to_owned())
        .add_field("op".to_owned(), STRING_TYPE)
        .add_field("path".to_owned(), STRING_TYPE)
        .add_field_with_default("value".to_owned(), Box::new(CelNull));
    env.add_type(patch).expect("a type");
    env
}

/// Returns a whole amount, which may be negative.
fn whole(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(rest) => 0_i64.checked_sub_unsigned(quantity::whole(rest).ok()?),
        None => i64::try_from(quantity::whole(text).ok()?).ok(),
    }
}

/// Adds Kubernetes' functions for quantities, which stay texts here. Policies have whole amounts.
fn add_quantities(context: &mut Context<'_, '_>) {
    type Text = Arc<String>;
    let amount = |text: &str| whole(text).expect("an amount");
    let add = "a function that CEL does not have";
    context.add_function("isQuantity", |text: Text| whole(&text).is_some()).expect(add);
    context.add_function("quantity", |text: Text| text).expect(add);
    context.add_function("isInteger", |This(it): This<Text>| whole(&it).is_some()).expect(add);
    context.add_function("asInteger", move |This(it): This<Text>| amount(&it)).expect(add);
    let compare =
        move |This(one): This<Text>, other: Text| amount(&one).cmp(&amount(&other)) as i64;
    context.add_function("compareTo", compare).expect(add);
}

/// Adds what an expression asks the API server's authorizer, which is a text here: the user, then
/// what was named. The users who may do something are those of the table.
fn add_authorizer(context: &mut Context<'_, '_>) {
    type Text = Arc<String>;
    let add = "a function that CEL does not have";
    let named = |This(it): This<Text>, name: Text| Arc::new(format!("{it} {name}"));
    for function in ["group", "resource", "namespace", "check"] {
        context.add_function(function, named).expect(add);
    }
    let permitted = format!("{} cgpu.dev pods default grow", GROWER.name);
    context.add_function("allowed", move |This(it): This<Text>| **it == permitted).expect(add);
}

impl Policy {
    pub(crate) fn of(object: &Value) -> Self {
        let env = Arc::new(environment());
        let source = |expression: &str| {
            env.compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
        };
        let compiled = |value: &Value| source(value["expression"].as_str().expect("an expression"));
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let spec = &object["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        let variables = list(&spec["variables"]);
        let validations = list(&spec["validations"]).into_iter().map(|it| Validation {
            holds: compiled(&it),
            message: text(&it["message"]),
            details: it["messageExpression"].as_str().map(source),
        });
        // A struct is no value of JSON, so its fields are read by the program.
        let patches = |mutation: &Value| {
            let expression = mutation["jsonPatch"]["expression"].as_str().expect("an expression");
            let fields = r#"{"op": it.op, "path": it.path, "value": it.value}"#;
            source(&format!("({expression}).map(it, {fields})"))
        };
        Self {
            mutations: list(&spec["mutations"]).iter().map(patches).collect(),
            conditions: list(&spec["matchConditions"]).iter().map(compiled).collect(),
            validations: validations.collect(),
            rules: list(&spec["matchConstraints"]["resourceRules"]),
            variables: variables.iter().map(|it| (text(&it["name"]), compiled(it))).collect(),
            env,
        }
    }

    pub(crate) fn validations(&self) -> usize {
        self.validations.len()
    }

    /// Returns why the policy refuses a request, if it does.
    pub(crate) fn refusal(&self, request: &Request) -> Option<Refusal> {
        let (operation, object, old) = match &request.operation {
            Operation::Create(object) => ("CREATE", object.clone(), Value::Null),
            Operation::Update(name, patch) => {
                let is_one = |object: &Value| object["metadata"]["name"] == *name;
                let old = objects().into_iter().find(is_one).expect("an object");
                let mut object = old.clone();
                merge(&mut object, patch);
                ("UPDATE", object, old)
            }
        };
        let names = |list: &Value, name: &str| {
            list.as_array().is_some_and(|list| list.iter().any(|item| item == name))
        };
        let applies = self.rules.iter().any(|rule| {
            names(&rule["operations"], operation) && names(&rule["resources"], request.resource)
        });
        if !applies {
            return None;
        }
        let mut user = json!({"username": request.user.name});
        if let Some(node) = request.user.node {
            user["extra"] = json!({"authentication.kubernetes.io/node-name": [node]});
        }
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let request = json!({"operation": operation, "userInfo": user, "namespace": namespace});
        let mut evaluation = Evaluation::new(self, request, object.clone(), old);
        if !self.conditions.iter().all(|program| evaluation.holds(program)) {
            return None;
        }
        evaluation.add_variables(self);
        let refused = self.validations.iter().find(|it| !evaluation.holds(&it.holds))?;
        let message = match &refused.details {
            Some(program) => {
                let text = evaluation.value(program).json().expect("a value of JSON");
                text.as_str().expect("a text").to_owned()
            }
            None => refused.message.clone(),
        };
        Some(Refusal { rule: refused.message.clone(), message })
    }

    /// Returns a new object as the policy changes it.
    pub(crate) fn mutated(&self, object: &Value) -> Value {
        let mut object = object.clone();
        for program in &self.mutations {
            let request = json!({"operation": "CREATE"});
            let mut evaluation = Evaluation::new(self, request, object.clone(), Value::Null);
            if !self.conditions.iter().all(|program| evaluation.holds(program)) {
                continue;
            }
            evaluation.add_variables(self);
            let patches = evaluation.value(program).json().expect("a value of JSON");
            for patch in patches.as_array().expect("a list") {
                apply(&mut object, patch);
            }
        }
        object
    }
}

/// What the expressions of a policy see of a request.
struct Evaluation {
    env: Arc<Env>,
    inputs: [(&'static str, Value); 5],
    variables: HashMap<String, cel::Value>,
}

impl Evaluation {
    fn new(policy: &Policy, request: Value, object: Value, old: Value) -> Self {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let labels = NAMESPACES.iter().find(|(name, _)| *name == namespace);
        let labels: Map<String, Value> = labels
            .into_iter()
            .flat_map(|(_, labels)| *labels)
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        let namespace = json!({"metadata": {"name": namespace, "labels": labels}});
        let user = request["userInfo"]["username"].clone();
        let inputs = [
            ("request", request),
            ("object", object),
            ("oldObject", old),
            ("namespaceObject", namespace),
            ("authorizer", user),
        ];
        Self { env: Arc::clone(&policy.env), inputs, variables: HashMap::new() }
    }

    /// Evaluates the variables in their order: each sees those before it.
    fn add_variables(&mut self, policy: &Policy) {
        for (name, program) in &policy.variables {
            let value = self.value(program);
            self.variables.insert(name.clone(), value);
        }
    }

    fn holds(&self, program: &Program) -> bool {
        self.value(program) == cel::Value::Bool(true)
    }

    fn value(&self, program: &Program) -> cel::Value {
        let mut context = Context::with_env(Arc::clone(&self.env));
        add_quantities(&mut context);
        add_authorizer(&mut context);
        for (name, value) in &self.inputs {
            context.add_variable(*name, value).expect("a value");
        }
        context.add_variable_from_value("variables", self.variables.clone());
        let value = program.execute(&context);
        value.unwrap_or_else(|error| panic!("{error} in {:#?}", self.inputs))
    }
}

/// Applies an operation of a JSON patch: `add`, `replace` or `remove`.
fn apply(object: &mut Value, patch: &Value) {
    let path = patch["path"].as_str().expect("a path");
    let (parent, last) = path.rsplit_once('/').expect("a path");
    let last = last.replace("~1", "/").replace("~0", "~");
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("no parent of {path}"));
    match (patch["op"].as_str(), parent) {
        (Some("add"), Value::Array(list)) if last == "-" => list.push(patch["value"].clone()),
        (Some("add" | "replace"), Value::Object(map)) => {
            drop(map.insert(last, patch["value"].clone()))
        }
        (Some("remove"), Value::Object(map)) => {
            map.remove(&last).unwrap_or_else(|| panic!("nothing at {path}"));
        }
        _ => panic!("no such operation: {patch}"),
    }
}

/// Applies a merge patch.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    for (name, value) in patch {
        if value.is_null() {
            object.as_object_mut().expect("an object").remove(name);
        } else {
            merge(&mut object[name], value);
        }
    }
}
