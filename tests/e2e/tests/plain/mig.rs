//! MIG instances: each is a card of its own, by its own name, with a limit of its own.

use cgpu_e2e::{Container, MIB, Outcome, Scene};

/// A whole card, and one that is cut into two instances.
const CUT: &str = "T4:15109,A100:40960/mig=3g.20gb,1g.5gb";

/// UUID and size in MiB of what the program sees: one instance, or the whole cards.
fn seen(scene: &Scene, container: &Container) -> Vec<(String, u64)> {
    let outcome = Outcome::of(scene.program_in(container, "visible")).silent();
    let cards = outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let card = |card: serde_json::Value| {
        (card["uuid"].as_str().expect("a UUID").to_owned(), card["total"].as_u64().expect("a total") / MIB)
    };
    cards.map(card).collect()
}

#[test]
fn instances_have_limits_of_their_own() {
    let scene = Scene::new(CUT);
    let container = scene.container("a").with("ALIYUN_COM_GPU_MEM_CONTAINER", "3,4,2");
    // Without a name a program sees the whole cards only; the books have the instances, too, where their card would be.
    let whole: Vec<u64> = seen(&scene, &container).into_iter().map(|(_, mib)| mib).collect();
    assert_eq!(whole, [3072]);
    let books = scene.books(&container);
    let cards: Vec<String> = (books["cards"].as_array().expect("cards").iter())
        .map(|card| card["uuid"].as_str().expect("a UUID").to_owned())
        .collect();
    assert_eq!(cards.len(), 3, "{books:#}");
    for (uuid, mib) in cards[1..].iter().zip([4096, 2048]) {
        for name in [uuid.replacen("GPU", "MIG", 1), uuid[..12].replacen("GPU", "MIG", 1)] {
            let rank = container.clone().with("CUDA_VISIBLE_DEVICES", &name);
            assert_eq!(seen(&scene, &rank), [(uuid.clone(), mib)], "{name}");
        }
    }
    // By name, in another order, and only some.
    let (first, second) = (cards[1].replacen("GPU", "MIG", 1), cards[2][..12].replacen("GPU", "MIG", 1));
    let named = scene
        .container("b")
        .with("ALIYUN_COM_GPU_MEM_CONTAINER", "1,2")
        .with("NVIDIA_VISIBLE_DEVICES", &format!("{second},{first}"))
        .with("CUDA_VISIBLE_DEVICES", &first);
    assert_eq!(seen(&scene, &named), [(cards[1].clone(), 2048)]);
    // A fraction is one of the instance, not of its card.
    let fraction = scene
        .container("c")
        .with("ALIYUN_COM_GPU_MEM_CONTAINER", "1")
        .with("ALIYUN_COM_GPU_MEM_DEV", "2")
        .with("CUDA_VISIBLE_DEVICES", &first);
    assert_eq!(seen(&scene, &fraction), [(cards[1].clone(), 20480 / 2)]);
}

#[test]
fn a_cut_card_cannot_be_named_by_its_index() {
    let scene = Scene::new(CUT);
    let container =
        scene.container("a").with("ALIYUN_COM_GPU_MEM_CONTAINER", "3").with("NVIDIA_VISIBLE_DEVICES", "1");
    let outcome = Outcome::of(scene.program_in(&container, "init")).exits(0);
    assert_eq!(outcome.number("init"), 1);
    assert!(outcome.stderr.contains("card 1 is cut into MIG instances"), "{outcome:?}");
}
