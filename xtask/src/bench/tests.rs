use super::*;
use crate::workspace::Package;

fn workspace(benches: &[&str]) -> Workspace {
    let benches = benches.iter().map(|&name| name.into()).collect();
    let package = Package {
        name: "botmesh".into(),
        publishable: true,
        tests_with_servers: false,
        servers_behind_feature: false,
        benches,
    };
    Workspace { root: ".".into(), target: "target".into(), packages: vec![package] }
}

#[test]
fn finds_the_package_of_a_bench() {
    assert_eq!(owner(&workspace(&["spine"]), "spine"), Ok("botmesh"));
}

#[test]
fn an_unknown_name_lists_those_there_are() {
    let error = owner(&workspace(&["spine", "journal"]), "spin").unwrap_err();
    assert_eq!(error, "no benchmark is called `spin`; there is: spine, journal");
    assert!(owner(&workspace(&[]), "spine").unwrap_err().ends_with("none yet"));
}
