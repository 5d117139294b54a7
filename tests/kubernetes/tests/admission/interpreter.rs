//! Evaluates a ValidatingAdmissionPolicy as an API server does.

use std::sync::Arc;

use cel::extractors::This;
use cel::{Context, Env, Program, extensions};
use cgpu_kubernetes_core::quantity;
use serde_json::{Map, Value, json};

use crate::requests::{NAMESPACES, Operation, Request, objects};

/// A policy, compiled.
pub(crate) struct Policy {
    env: Arc<Env>,
    rules: Vec<Value>,
    conditions: Vec<Program>,
    variables: Vec<(String, Program)>,
    validations: Vec<Validation>,
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

/// Adds Kubernetes' functions for quantities. Policies here have whole amounts.
fn add_quantities(context: &mut Context<'_, '_>) {
    let whole = |text: &str| quantity::whole(text).ok().and_then(|it| i64::try_from(it).ok());
    let add = "a function that CEL does not have";
    context.add_function("isQuantity", move |text: Arc<String>| whole(&text).is_some()).expect(add);
    context
        .add_function("quantity", move |text: Arc<String>| whole(&text).expect("an amount"))
        .expect(add);
    let compare = |This(one): This<i64>, other: i64| one.cmp(&other) as i64;
    context.add_function("compareTo", compare).expect(add);
}

impl Policy {
    pub(crate) fn of(object: &Value) -> Self {
        let mut env = Env::stdlib();
        env.add_extension(extensions::strings).expect("an extension");
        let env = Arc::new(env);
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
        Self {
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
        let mut variables = Map::new();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let labels = NAMESPACES.iter().find(|(name, _)| *name == namespace);
        let labels: Map<String, Value> = labels
            .into_iter()
            .flat_map(|(_, labels)| *labels)
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        let evaluate = |program: &Program, variables: &Map<String, Value>| {
            let mut context = Context::with_env(Arc::clone(&self.env));
            add_quantities(&mut context);
            let request = json!({"operation": operation, "userInfo": user, "namespace": namespace});
            let namespace = json!({"metadata": {"name": namespace, "labels": labels}});
            for (name, value) in [
                ("request", &request),
                ("object", &object),
                ("oldObject", &old),
                ("namespaceObject", &namespace),
            ] {
                context.add_variable(name, value).expect("a value");
            }
            context.add_variable("variables", variables).expect("a value");
            let value = program.execute(&context);
            value.unwrap_or_else(|error| panic!("{error} in {operation} of {object:#}"))
        };
        let is_true = |program: &Program, variables: &Map<String, Value>| {
            evaluate(program, variables) == cel::Value::Bool(true)
        };
        if !self.conditions.iter().all(|program| is_true(program, &variables)) {
            return None;
        }
        for (name, program) in &self.variables {
            let value = evaluate(program, &variables).json().expect("a value of JSON");
            variables.insert(name.clone(), value);
        }
        let refused = self.validations.iter().find(|it| !is_true(&it.holds, &variables))?;
        let message = match &refused.details {
            Some(program) => {
                let text = evaluate(program, &variables).json().expect("a value of JSON");
                text.as_str().expect("a text").to_owned()
            }
            None => refused.message.clone(),
        };
        Some(Refusal { rule: refused.message.clone(), message })
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
