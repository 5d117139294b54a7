//! Evaluates a ValidatingAdmissionPolicy as an API server does.

use std::sync::Arc;

use cel::{Context, Env, Program};
use serde_json::{Map, Value, json};

use crate::requests::{Operation, Request, objects};

/// A policy, compiled.
pub(crate) struct Policy {
    env: Arc<Env>,
    rules: Vec<Value>,
    variables: Vec<(String, Program)>,
    validations: Vec<(Program, String)>,
}

impl Policy {
    pub(crate) fn of(object: &Value) -> Self {
        let env = Arc::new(Env::stdlib());
        let compiled = |value: &Value| {
            let expression = value["expression"].as_str().expect("an expression");
            env.compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
        };
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let spec = &object["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        let variables = list(&spec["variables"]);
        let validations = list(&spec["validations"]);
        Self {
            rules: list(&spec["matchConstraints"]["resourceRules"]),
            variables: variables.iter().map(|it| (text(&it["name"]), compiled(it))).collect(),
            validations: validations
                .iter()
                .map(|it| (compiled(it), text(&it["message"])))
                .collect(),
            env,
        }
    }

    pub(crate) fn validations(&self) -> usize {
        self.validations.len()
    }

    /// Returns the message with which the policy refuses a request.
    pub(crate) fn refusal(&self, request: &Request) -> Option<String> {
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
        let evaluate = |program: &Program, variables: &Map<String, Value>| {
            let mut context = Context::with_env(Arc::clone(&self.env));
            let request = json!({"operation": operation, "userInfo": user});
            for (name, value) in [("request", &request), ("object", &object), ("oldObject", &old)] {
                context.add_variable(name, value).expect("a value");
            }
            context.add_variable("variables", variables).expect("a value");
            let value = program.execute(&context);
            value.unwrap_or_else(|error| panic!("{error} in {operation} of {object:#}"))
        };
        for (name, program) in &self.variables {
            let value = evaluate(program, &variables).json().expect("a value of JSON");
            variables.insert(name.clone(), value);
        }
        let refused = self
            .validations
            .iter()
            .find(|(program, _)| evaluate(program, &variables) != cel::Value::Bool(true));
        refused.map(|(_, message)| message.clone())
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
