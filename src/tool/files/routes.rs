//! A workspace of several workspaces, each at a path of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;

use super::workspace::{DirectoryEntries, FileAccess, FileQuery, FileWorkspace, FoundLines, FoundPaths, SearchStop};
use crate::domain::path::below;
use crate::domain::state::{File, FileFacts, Update};

/// A workspace at a path.
#[derive(Clone)]
pub struct FileRoute {
    /// The path, in normal form.
    pub prefix: String,
    /// The workspace.
    pub workspace: Arc<dyn FileWorkspace>,
    /// True if the workspace names its files relative to the path.
    pub is_relative: bool,
    /// True if `ls` shows the path even if nothing is there.
    pub is_listed: bool,
}

/// Several workspaces. The longest path that a file is at or below decides where the file is.
#[derive(Clone)]
pub struct RoutedFiles {
    default: Arc<dyn FileWorkspace>,
    /// The routes; longer paths precede.
    routes: Vec<FileRoute>,
}

/// The target of a path: the workspace, and its name for the path.
struct Target<'a> {
    /// The position of the route; none for the default.
    route: Option<usize>,
    workspace: &'a dyn FileWorkspace,
    /// The path by which the agent sees the root of the workspace; empty if both name files alike.
    mount: &'a str,
    path: String,
}

impl Target<'_> {
    /// Returns the path as the agent sees it, of a path as the workspace names it.
    fn outer(&self, path: &str) -> String {
        match path.strip_prefix('/') {
            Some("") if !self.mount.is_empty() => self.mount.to_owned(),
            Some(_) | None => format!("{}{path}", self.mount),
        }
    }
}

impl RoutedFiles {
    /// Creates the workspace of `default` and these routes.
    pub fn new(default: Arc<dyn FileWorkspace>, mut routes: Vec<FileRoute>) -> Self {
        routes.sort_by_key(|route| std::cmp::Reverse(route.prefix.len()));
        Self { default, routes }
    }

    fn route_of(&self, path: &str) -> Option<usize> {
        self.routes
            .iter()
            .position(|route| path == route.prefix || below(path, &route.prefix).is_some())
    }

    fn target(&self, path: &str) -> Target<'_> {
        let at = self.route_of(path);
        let Some(route) = at.and_then(|at| self.routes.get(at)) else {
            return Target {
                route: None,
                workspace: &*self.default,
                mount: "",
                path: path.to_owned(),
            };
        };
        let rest = below(path, &route.prefix).unwrap_or_default();
        Target {
            route: at,
            workspace: &*route.workspace,
            mount: if route.is_relative { &route.prefix } else { "" },
            path: if route.is_relative {
                format!("/{rest}")
            } else {
                path.to_owned()
            },
        }
    }

    /// Returns the workspaces that have to answer a query, with their queries.
    fn parts(&self, query: &FileQuery) -> Vec<(Target<'_>, FileQuery)> {
        let below_it = self
            .routes
            .iter()
            .filter(|route| below(&route.prefix, &query.at).is_some())
            .map(|route| self.target(&route.prefix));
        let all = std::iter::once(self.target(&query.at)).chain(below_it);
        all.map(|target| {
            let own = query.inside(target.mount, &target.path);
            (target, own)
        })
        .collect()
    }
}

#[async_trait]
impl FileWorkspace for RoutedFiles {
    fn is_shared(&self, path: &str) -> bool {
        let target = self.target(path);
        target.workspace.is_shared(&target.path)
    }

    fn has_effects(&self) -> bool {
        self.default.has_effects() || self.routes.iter().any(|route| route.workspace.has_effects())
    }

    async fn real_path(&self, access: FileAccess<'_>, path: &str, follows_last: bool) -> Result<String, String> {
        let target = self.target(path);
        let real = target.workspace.real_path(access, &target.path, follows_last).await?;
        Ok(target.outer(&real))
    }

    async fn is_missing(&self, access: FileAccess<'_>, path: &str) -> Result<bool, String> {
        let target = self.target(path);
        target.workspace.is_missing(access, &target.path).await
    }

    async fn list(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<DirectoryEntries, String> {
        let target = self.target(&query.at);
        let own = query.inside(target.mount, &target.path);
        let found = target.workspace.list(access, &own).await?;
        let seen = found.entries.iter().map(|entry| target.outer(entry));
        let mut entries: BTreeSet<String> = seen
            .filter(|entry| self.route_of(entry.trim_end_matches('/')) == target.route)
            .collect();
        let directory = query.at.trim_end_matches('/');
        for route in &self.routes {
            let Some(rest) = below(&route.prefix, &query.at) else {
                continue;
            };
            let name = rest.split('/').next().unwrap_or(rest);
            let inner = self.target(&route.prefix);
            let is_there = || async {
                let inside = query.inside(inner.mount, &inner.path);
                let found = inner.workspace.paths(access, &inside).await;
                found.is_ok_and(|found| !found.paths.is_empty())
            };
            if query.shows(&format!("{directory}/{name}")) && (route.is_listed || is_there().await) {
                entries.insert(format!("{directory}/{name}/"));
            }
        }
        Ok(DirectoryEntries {
            entries,
            stop: found.stop,
        })
    }

    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String> {
        let mut all = FoundPaths::default();
        for (target, own) in self.parts(query) {
            let left = query.max.saturating_sub(all.paths.len());
            let own = own.at_most(left);
            let found = target.workspace.paths(access, &own).await?;
            let is_own = |path: &str| self.route_of(path) == target.route;
            let seen = found.paths.iter().map(|path| target.outer(path));
            all.paths.extend(seen.filter(|path| is_own(path)));
            let sizes = found.sizes.into_iter().map(|(path, size)| (target.outer(&path), size));
            all.sizes.extend(sizes.filter(|(path, _)| is_own(path)));
            all.stop = all.stop.or(found.stop);
        }
        all.paths.sort();
        Ok(all)
    }

    async fn facts(&self, access: FileAccess<'_>, paths: &[String]) -> Result<BTreeMap<String, FileFacts>, String> {
        let mut by_route: BTreeMap<Option<usize>, (Target<'_>, Vec<String>)> = BTreeMap::new();
        for path in paths {
            let target = self.target(path);
            let own = target.path.clone();
            by_route
                .entry(target.route)
                .or_insert_with(|| (target, vec![]))
                .1
                .push(own);
        }
        let mut all = BTreeMap::new();
        for (target, own) in by_route.into_values() {
            let known = target.workspace.facts(access, &own).await?;
            all.extend(known.into_iter().map(|(path, facts)| (target.outer(&path), facts)));
        }
        Ok(all)
    }

    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
        let target = self.target(path);
        target.workspace.read(access, &target.path).await
    }

    async fn write(
        &self,
        access: FileAccess<'_>,
        path: &str,
        file: File,
        before: Option<&File>,
    ) -> Result<Update, String> {
        let target = self.target(path);
        if target.path == "/" {
            return Err(format!("Error: '{path}' is a directory, not a file"));
        }
        target.workspace.write(access, &target.path, file, before).await
    }

    async fn delete(
        &self,
        access: FileAccess<'_>,
        path: &str,
        files: Vec<String>,
        before: Option<&File>,
    ) -> Result<Option<Update>, String> {
        let own =
            |route: &&FileRoute| route.is_listed && (route.prefix == path || below(&route.prefix, path).is_some());
        if let Some(route) = self.routes.iter().find(own) {
            return Err(format!(
                "Error: '{path}' cannot be deleted as a whole: '{}' is a workspace of its own. Name what is in it.",
                route.prefix
            ));
        }
        let mut by_route: BTreeMap<Option<usize>, Vec<String>> = BTreeMap::new();
        let first = self.target(path);
        by_route.entry(first.route).or_default();
        for file in &files {
            let target = self.target(file);
            by_route.entry(target.route).or_default().push(target.path);
        }
        let mut update: Option<Update> = None;
        for (at, files) in by_route {
            let route = at.filter(|_| at != first.route).and_then(|at| self.routes.get(at));
            let target = self.target(route.map_or(path, |route| &route.prefix));
            // A file is in the first of them, alone.
            let before = before.filter(|_| at == first.route);
            let deleted = target.workspace.delete(access, &target.path, files, before).await?;
            if let Some(deleted) = deleted {
                update.get_or_insert_default().merge(deleted);
            }
        }
        Ok(update)
    }

    async fn grep(&self, access: FileAccess<'_>, query: &FileQuery, text: &str) -> Result<FoundLines, String> {
        let mut all = FoundLines::default();
        for (target, own) in self.parts(query) {
            let left = query.max.saturating_sub(all.count());
            if left == 0 {
                all.stop = all.stop.or(Some(SearchStop::Results));
                break;
            }
            let own = own.at_most(left);
            let found = target.workspace.grep(access, &own, text).await?;
            let is_own = |path: &String| self.route_of(path) == target.route;
            for mut file in found.files {
                file.path = target.outer(&file.path);
                all.files.extend(is_own(&file.path).then_some(file));
            }
            let cut_short = found.cut_short.iter().map(|path| target.outer(path));
            all.cut_short.extend(cut_short.filter(is_own));
            all.stop = all.stop.or(found.stop);
        }
        all.files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(all)
    }
}

/// A workspace in which nothing can be changed.
#[derive(Clone)]
pub struct ReadOnlyFiles(Arc<dyn FileWorkspace>);

impl ReadOnlyFiles {
    /// Protects a workspace.
    pub fn new(workspace: Arc<dyn FileWorkspace>) -> Self {
        Self(workspace)
    }
}

fn read_only(path: &str) -> String {
    format!("Error: '{path}' cannot be changed: this workspace is read-only")
}

#[async_trait]
impl FileWorkspace for ReadOnlyFiles {
    fn is_shared(&self, path: &str) -> bool {
        self.0.is_shared(path)
    }

    async fn real_path(&self, access: FileAccess<'_>, path: &str, follows_last: bool) -> Result<String, String> {
        self.0.real_path(access, path, follows_last).await
    }

    async fn is_missing(&self, access: FileAccess<'_>, path: &str) -> Result<bool, String> {
        self.0.is_missing(access, path).await
    }

    async fn list(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<DirectoryEntries, String> {
        self.0.list(access, query).await
    }

    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String> {
        self.0.paths(access, query).await
    }

    async fn facts(&self, access: FileAccess<'_>, paths: &[String]) -> Result<BTreeMap<String, FileFacts>, String> {
        self.0.facts(access, paths).await
    }

    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
        self.0.read(access, path).await
    }

    async fn write(&self, _: FileAccess<'_>, path: &str, _: File, _: Option<&File>) -> Result<Update, String> {
        Err(read_only(path))
    }

    async fn delete(
        &self,
        _: FileAccess<'_>,
        path: &str,
        _: Vec<String>,
        _: Option<&File>,
    ) -> Result<Option<Update>, String> {
        Err(read_only(path))
    }

    async fn grep(&self, access: FileAccess<'_>, query: &FileQuery, text: &str) -> Result<FoundLines, String> {
        self.0.grep(access, query, text).await
    }
}
