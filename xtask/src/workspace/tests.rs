use super::*;

const METADATA: &str = r#"{
    "workspace_root": "/w", "target_directory": "/w/target",
    "packages": [
        {"name": "botmesh", "publish": null, "dependencies": [{"name": "serde", "kind": null}], "targets": [
            {"name": "botmesh", "kind": ["lib"]}, {"name": "spine", "kind": ["bench"]}]},
        {"name": "botmesh-redis-store", "publish": null, "targets": [],
            "dependencies": [{"name": "botmesh-test-servers", "kind": "dev"}]},
        {"name": "botmesh-nemesis", "publish": [], "targets": [],
            "dependencies": [{"name": "botmesh-test-servers", "kind": null}]},
        {"name": "botmesh-examples", "publish": [], "targets": [], "features": {"redis": []},
            "dependencies": [{"name": "botmesh-test-servers", "kind": "dev"}]},
        {"name": "botmesh-conformance", "publish": [], "targets": [], "features": {"redis": []}, "dependencies": []},
        {"name": "botmesh-test-servers", "publish": [], "targets": [], "dependencies": []},
        {"name": "xtask", "publish": [], "targets": [{"name": "xtask", "kind": ["bin"]}],
            "dependencies": [{"name": "botmesh-test-servers", "kind": null}]}
    ]
}"#;

#[test]
fn reads_packages_benches_who_is_published_and_who_needs_servers() {
    let workspace = Workspace::parse(METADATA).unwrap();
    assert_eq!(workspace.root, Path::new("/w"));
    assert_eq!(workspace.target, Path::new("/w/target"));
    let read: Vec<_> =
        workspace.packages.iter().map(|p| (p.name.as_str(), p.publishable, p.benches.len())).collect();
    let expected = [
        ("botmesh", true, 1),
        ("botmesh-redis-store", true, 0),
        ("botmesh-nemesis", false, 0),
        ("botmesh-examples", false, 0),
        ("botmesh-conformance", false, 0),
        ("botmesh-test-servers", false, 0),
        ("xtask", false, 0),
    ];
    assert_eq!(read, expected);
    let with_servers = workspace
        .packages
        .iter()
        .filter(|p| p.tests_with_servers)
        .map(|p| (p.name.as_str(), p.servers_behind_feature));
    let expected = [
        ("botmesh-redis-store", false),
        ("botmesh-nemesis", false),
        ("botmesh-examples", true),
        ("botmesh-test-servers", false),
    ];
    assert_eq!(with_servers.collect::<Vec<_>>(), expected);
}

#[test]
fn an_unknown_shape_is_refused() {
    assert!(Workspace::parse("{}").is_none());
    assert!(
        Workspace::parse(r#"{"workspace_root": "/w", "target_directory": "/t", "packages": [{}]}"#).is_none()
    );
}
