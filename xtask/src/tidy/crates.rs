//! Who may depend on whom, and what every manifest says.

use super::manifest::{Dependency, Kind, Manifest, is_member};
use super::{Finding, Tree};

const CHANNELS: &[&str] = &["terminal", "telegram", "meta", "baileys-bridge"];

/// What kind of crate a folder holds, and with it whom it may depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Core,
    Runtime,
    AppendLog,
    Store,
    Events,
    Channel,
    Webhook,
    Testing,
    Conformance,
    Nemesis,
    Examples,
    Servers,
    Scripts,
}

impl Role {
    pub(super) fn of(folder: &str) -> Option<Self> {
        Some(match folder.strip_prefix("crates/").unwrap_or(folder) {
            "core" => Self::Core,
            "botmesh" => Self::Runtime,
            "append-log" => Self::AppendLog,
            "events" => Self::Events,
            "webhook" => Self::Webhook,
            "testing" => Self::Testing,
            "conformance" => Self::Conformance,
            "nemesis" => Self::Nemesis,
            "examples" => Self::Examples,
            "test-servers" => Self::Servers,
            "xtask" => Self::Scripts,
            name if name.ends_with("-store") => Self::Store,
            name if CHANNELS.contains(&name) => Self::Channel,
            _ => return None,
        })
    }

    fn may_depend_on(self, other: Self, optional: bool) -> bool {
        match self {
            Self::Core | Self::AppendLog | Self::Servers => false,
            Self::Scripts => other == Self::Servers,
            Self::Examples => !matches!(other, Self::Nemesis | Self::Servers),
            Self::Store | Self::Webhook => other == Self::Core,
            Self::Channel => matches!(other, Self::Core | Self::Webhook),
            Self::Runtime | Self::Events => matches!(other, Self::Core | Self::AppendLog),
            Self::Testing => matches!(other, Self::Core | Self::Runtime),
            Self::Nemesis => {
                matches!(other, Self::Core | Self::Runtime | Self::Store | Self::Testing | Self::Servers)
            }
            Self::Conformance => {
                matches!(other, Self::Core | Self::Runtime | Self::Testing)
                    || (optional && matches!(other, Self::Store | Self::Events))
            }
        }
    }

    /// Even tests are free only up to this: a backend stays usable without the runtime and without its neighbours.
    fn may_test_with(self, other: Self) -> bool {
        match self {
            Self::Store => !matches!(other, Self::Runtime | Self::Store | Self::Channel),
            Self::Channel | Self::Webhook => !matches!(other, Self::Runtime | Self::Store),
            _ => true,
        }
    }
}

/// The folder name of one of our packages.
fn ours(package: &str) -> Option<&str> {
    if package == "botmesh" { Some(package) } else { package.strip_prefix("botmesh-") }
}

pub(super) fn edges(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for manifest in Manifest::members(tree) {
        let Some(role) = Role::of(manifest.folder) else {
            let advice =
                "this crate is not in the table of the architecture: add it there and to tidy's `Role`";
            found.push(Finding::new(manifest.path, 1, advice));
            continue;
        };
        for dependency in manifest.dependencies() {
            if let Some(advice) = forbidden(role, manifest.folder, &dependency) {
                found.push(Finding::new(manifest.path, dependency.line, advice));
            }
        }
    }
    found
}

fn forbidden(role: Role, folder: &str, dependency: &Dependency) -> Option<String> {
    let other = Role::of(ours(&dependency.package)?);
    let allowed = match dependency.kind {
        Kind::Dev => other.is_none_or(|other| role.may_test_with(other)),
        Kind::Normal | Kind::Build => {
            other.is_some_and(|other| role.may_depend_on(other, dependency.optional))
        }
    };
    let hint = match (role, other) {
        (Role::Conformance, Some(Role::Store | Role::Events)) => "make it optional, behind a feature",
        (_, Some(Role::Servers)) => "it is not published; in dev-dependencies write its path",
        _ => "move what is shared to botmesh-core, or turn the dependency round",
    };
    (!allowed).then(|| format!("{folder} may not depend on {}: {hint}", dependency.package))
}

pub(super) fn manifests(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| is_member(&file.path) || file.path == "Cargo.toml") {
        match Manifest::parse(file) {
            Ok(manifest) if !manifest.folder.is_empty() => found.extend(member(tree, &manifest)),
            Ok(_) => {}
            Err((line, message)) => {
                found.push(Finding::new(&file.path, line, format!("cannot be read: {message}")));
            }
        }
    }
    found
}

fn member(tree: &Tree, manifest: &Manifest<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut say = |key: &[&str], advice: String| {
        found.push(Finding::new(manifest.path, manifest.line(key), advice));
    };
    let name = expected_name(manifest.folder);
    if manifest.text_of(&["package", "name"]) != Some(&name) {
        say(&["package", "name"], format!("the package of {} is called {name}", manifest.folder));
    }
    if manifest.text_of(&["package", "description"]).is_none_or(str::is_empty) {
        say(&["package", "description"], "add a description: it is the crate's line on crates.io".into());
    }
    if manifest.text_of(&["package", "readme"]) != Some("README.md") {
        say(&["package", "readme"], "add readme = \"README.md\"".into());
    }
    if !manifest.is_true(&["lints", "workspace"]) {
        say(&["lints", "workspace"], "add [lints] workspace = true".into());
    }
    for file in ["README.md", "CHANGELOG.md"] {
        if !tree.contains(&format!("{}/{file}", manifest.folder)) {
            say(&["package"], format!("{} has no {file}: add one", manifest.folder));
        }
    }
    found
}

fn expected_name(folder: &str) -> String {
    match folder.strip_prefix("crates/").unwrap_or(folder) {
        name @ ("botmesh" | "xtask") => name.into(),
        name => format!("botmesh-{name}"),
    }
}

pub(super) fn internal_dependencies(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for manifest in Manifest::members(tree) {
        for dependency in
            manifest.dependencies().iter().filter(|dependency| ours(&dependency.package).is_some())
        {
            let path_only = dependency.path.is_some() && dependency.version.is_none();
            let test_only = dependency.kind == Kind::Dev && path_only;
            if !(dependency.workspace || test_only) {
                let name = &dependency.package;
                let advice =
                    format!("{name} is ours: write workspace = true, or in dev-dependencies only its path");
                found.push(Finding::new(manifest.path, dependency.line, advice));
            }
        }
    }
    found
}

pub(super) fn workspace_versions(tree: &Tree) -> Vec<Finding> {
    let Some(root) = Manifest::root(tree) else { return Vec::new() };
    let members = Manifest::members(tree);
    let mut found = Vec::new();
    for dependency in
        root.workspace_dependencies().iter().filter(|dependency| ours(&dependency.package).is_some())
    {
        let name = &dependency.package;
        let member = members.iter().find(|member| member.text_of(&["package", "name"]) == Some(name));
        let advice = match member {
            None => Some(format!("no crate of the workspace is called {name}: remove it")),
            Some(member) if dependency.path.as_deref() != Some(member.folder) => {
                Some(format!("the path of {name} is {}", member.folder))
            }
            Some(member) => {
                let version = member.text_of(&["package", "version"]).unwrap_or("missing");
                let same = dependency.version.as_deref() == Some(version);
                (!same).then(|| {
                    format!("{name} is at version {version} in its own manifest: write the same here")
                })
            }
        };
        found.extend(advice.map(|advice| Finding::new(root.path, dependency.line, advice)));
    }
    found
}

#[cfg(test)]
mod tests;
