//! What the rules read in a Cargo.toml, with the line of each thing.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::scan::line_of;
use super::{File, Tree};

pub(super) struct Manifest<'a> {
    pub(super) path: &'a str,
    /// The folder from the root of the checkout; empty for the workspace's own manifest.
    pub(super) folder: &'a str,
    text: &'a str,
    root: Spanned<DeTable<'a>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Dev,
    Build,
}

pub(super) struct Dependency {
    /// The package, whatever the key that names it here.
    pub(super) package: String,
    pub(super) kind: Kind,
    pub(super) line: usize,
    pub(super) workspace: bool,
    pub(super) path: Option<String>,
    pub(super) version: Option<String>,
    pub(super) optional: bool,
}

type Parsed<'a> = Result<Manifest<'a>, (usize, String)>;

impl<'a> Manifest<'a> {
    pub(super) fn parse(file: &'a File) -> Parsed<'a> {
        let folder = file.path.strip_suffix("Cargo.toml").unwrap_or("").trim_end_matches('/');
        let root = DeTable::parse(&file.text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            (line_of(&file.text, at), error.message().to_owned())
        })?;
        Ok(Self { path: &file.path, folder, text: &file.text, root })
    }

    /// The manifests of the workspace's members that can be read.
    pub(super) fn members(tree: &'a Tree) -> Vec<Self> {
        tree.files
            .iter()
            .filter(|file| is_member(&file.path))
            .filter_map(|file| Self::parse(file).ok())
            .collect()
    }

    pub(super) fn root(tree: &'a Tree) -> Option<Self> {
        Self::parse(tree.files.iter().find(|file| file.path == "Cargo.toml")?).ok()
    }

    pub(super) fn value(&self, path: &[&str]) -> Option<&Spanned<DeValue<'a>>> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.root.get_ref().get(*first)?, |value, key| value.get_ref().get(*key))
    }

    pub(super) fn text_of(&self, path: &[&str]) -> Option<&str> {
        self.value(path)?.get_ref().as_str()
    }

    pub(super) fn is_true(&self, path: &[&str]) -> bool {
        self.value(path).and_then(|value| value.get_ref().as_bool()) == Some(true)
    }

    /// The line of what is there, else of the nearest thing around it.
    pub(super) fn line(&self, path: &[&str]) -> usize {
        let longest = (1..=path.len()).rev().find_map(|length| self.value(&path[..length]));
        longest.map_or(1, |value| line_of(self.text, value.span().start))
    }

    /// The dependencies of every section, those for one target included.
    pub(super) fn dependencies(&self) -> Vec<Dependency> {
        let mut found = self.sections(self.root.get_ref());
        if let Some(targets) = self.value(&["target"]).and_then(|value| value.get_ref().as_table()) {
            found.extend(
                targets.values().filter_map(|t| t.get_ref().as_table()).flat_map(|t| self.sections(t)),
            );
        }
        found
    }

    pub(super) fn workspace_dependencies(&self) -> Vec<Dependency> {
        let table = self.value(&["workspace", "dependencies"]).and_then(|value| value.get_ref().as_table());
        table.map(|table| self.section(table, Kind::Normal)).unwrap_or_default()
    }

    fn sections(&self, table: &DeTable<'a>) -> Vec<Dependency> {
        let kinds = [
            ("dependencies", Kind::Normal),
            ("dev-dependencies", Kind::Dev),
            ("build-dependencies", Kind::Build),
        ];
        let tables =
            kinds.iter().filter_map(|(name, kind)| Some((table.get(*name)?.get_ref().as_table()?, *kind)));
        tables.flat_map(|(table, kind)| self.section(table, kind)).collect()
    }

    fn section(&self, table: &DeTable<'a>, kind: Kind) -> Vec<Dependency> {
        let entries = table.iter();
        entries.map(|(key, value)| self.dependency(key, value.get_ref(), kind)).collect()
    }

    fn dependency(
        &self,
        key: &Spanned<toml::de::DeString<'a>>,
        value: &DeValue<'a>,
        kind: Kind,
    ) -> Dependency {
        let text = |name: &str| value.get(name).and_then(|field| field.get_ref().as_str()).map(str::to_owned);
        let flag = |name: &str| value.get(name).and_then(|field| field.get_ref().as_bool()) == Some(true);
        Dependency {
            package: text("package").unwrap_or_else(|| key.get_ref().to_string()),
            kind,
            line: line_of(self.text, key.span().start),
            workspace: flag("workspace"),
            path: text("path"),
            version: value.as_str().map(str::to_owned).or_else(|| text("version")),
            optional: flag("optional"),
        }
    }
}

/// Whether this is the manifest of a crate of the workspace.
pub(super) fn is_member(path: &str) -> bool {
    match path.split('/').collect::<Vec<_>>()[..] {
        ["crates", _, "Cargo.toml"] => true,
        [folder, "Cargo.toml"] => {
            matches!(folder, "conformance" | "examples" | "nemesis" | "test-servers" | "xtask")
        }
        _ => false,
    }
}
