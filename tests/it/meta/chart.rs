//! The Helm chart as Helm itself renders it: resources that Kubernetes knows and that belong together, and servers that start
//! with what the chart gives them.
//!
//! `ADJUTANT_TEST_PYTHON` names a Python that has what `tests/chart/requirements.txt` lists, else `python3` is tried.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::process::{Process, server_in};
use crate::support::server::python_with;
use crate::support::{TestServer, on_postgres};

on_postgres! {
    the_servers_of_the_chart_start_and_answer_their_probes,
}

/// An API key and a secret of the servers.
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Renders the chart with these values; `None`, after saying so, if a Python for that is not there.
fn renders(values: &Value) -> Option<Output> {
    let modules = ["helm_python", "kubernetes_validate"];
    let python = python_with(&modules, "tests/chart/requirements.txt")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python);
    command
        .arg("-B")
        .arg(root.join("tests/chart/render.py"))
        .arg(root.join("deploy/helm/adjutant"))
        .arg(values.to_string());
    Some(command.output().expect("Python starts"))
}

/// The resources that a chart makes.
struct Resources(Vec<Value>);

impl Resources {
    /// Returns those that these values make. Each is valid.
    fn of(values: &Value) -> Option<Self> {
        let output = renders(values)?;
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{values}: {complained}");
        Some(Self(serde_json::from_slice(&output.stdout).expect("JSON")))
    }

    /// Returns the names of those of a kind.
    fn names(&self, kind: &str) -> Vec<&str> {
        let all = self.0.iter().filter(|resource| resource["kind"] == kind);
        all.map(|resource| text(&resource["metadata"]["name"])).collect()
    }

    /// Returns the one of a kind with a name.
    fn get(&self, kind: &str, name: &str) -> &Value {
        let found = self
            .0
            .iter()
            .find(|resource| resource["kind"] == kind && resource["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
    }

    /// Returns the Deployments whose pods these labels select.
    fn selected(&self, labels: &Value) -> Vec<&str> {
        let labels = labels.as_object().expect("labels");
        assert!(!labels.is_empty(), "it would select all");
        let is_selected = |name: &&str| {
            let pods = &self.get("Deployment", name)["spec"]["template"]["metadata"]["labels"];
            labels.iter().all(|(label, value)| pods[label] == *value)
        };
        self.names("Deployment").into_iter().filter(is_selected).collect()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

/// Returns values that use each part of the chart.
fn all_values() -> Value {
    json!({
        "imagePullSecrets": [{"name": "registry"}],
        "agents": {
            "reviewer/AGENTS.md": "---\nmodel: openai:gpt-5\ndescription: Reviews changes.\n---\nYou review changes.\n",
            "reviewer/skills/style/SKILL.md": "---\nname: style\ndescription: The style.\n---\nBe brief.\n",
        },
        "nats": {
            "url": "tls://nats:4222",
            "sslrootcert": "/run/secrets/nats/ca.crt",
            "sslcert": "/run/secrets/nats/tls.crt",
            "sslkey": "/run/secrets/nats/tls.key",
        },
        "envFromSecrets": ["variables"],
        "secretFolders": {"adjutant": "adjutant-secrets", "nats": "nats-certificates"},
        "env": [{"name": "ADJUTANT_LOG", "value": "info"}],
        "migrate": {"secretName": "owner", "urlKey": "url", "resources": {"limits": {"memory": "256Mi"}}},
        "hosts": ["other.example.com"],
        "api": {
            "podAnnotations": {"a": "b"},
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
        },
        "autoscaling": {"kind": "keda"},
        "ingress": {
            "enabled": true,
            "className": "nginx",
            "annotations": {"a": "b"},
            "host": "agents.example.com",
            "tlsSecretName": "certificate",
        },
        "networkPolicy": {"enabled": true, "from": [{"namespaceSelector": {}}]},
        "serviceAccount": {"annotations": {"a": "b"}},
    })
}

/// Returns values that leave out what can be left out, with the other way to follow the queue.
fn few_values() -> Value {
    json!({
        "nats": {"secretName": "nats"},
        "migrate": {"enabled": false},
        "podDisruptionBudget": {"enabled": false},
        "autoscaling": {"kind": "hpa"},
        "secretFolders": {"adjutant": null},
        "service": {"type": "LoadBalancer"},
    })
}

#[test]
fn each_resource_of_the_chart_is_one_of_kubernetes() {
    let servers = ["Deployment", "Service", "ConfigMap", "ServiceAccount"];
    for (values, more) in [
        (json!({}), &["Job", "PodDisruptionBudget"][..]),
        (
            all_values(),
            &["Job", "PodDisruptionBudget", "Ingress", "NetworkPolicy", "ScaledObject"][..],
        ),
        (few_values(), &["HorizontalPodAutoscaler"][..]),
    ] {
        let Some(resources) = Resources::of(&values) else {
            return;
        };
        let mut found: Vec<&str> = resources.0.iter().map(|resource| text(&resource["kind"])).collect();
        found.sort_unstable();
        found.dedup();
        let mut expected = [servers.as_slice(), more].concat();
        expected.sort_unstable();
        assert_eq!(found, expected, "{values}");
    }
}

#[test]
fn values_that_the_chart_does_not_have_are_refused() {
    for (values, named) in [
        (json!({"replicas": 2}), "replicas"),
        (json!({"config": "[cluster]\nrole = \"api\"\n"}), "config"),
        (json!({"ingress": {"enabled": true}}), "ingress/host"),
        (json!({"nats": {"url": "nats://me:s3cret@nats:4222"}}), "nats/url"),
        (json!({"nats": {"sslrootcert": "ca.crt"}}), "nats/sslrootcert"),
        (json!({"autoscaling": {"kind": "cpu"}}), "autoscaling/kind"),
    ] {
        let Some(output) = renders(&values) else { return };
        let complained = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{values}: {complained}");
        assert!(complained.contains(named), "{values}: {complained}");
    }
}

#[test]
fn the_resources_of_the_chart_find_each_other() {
    for values in [json!({}), all_values(), few_values()] {
        let Some(resources) = Resources::of(&values) else {
            return;
        };
        for name in resources.names("Deployment") {
            finds_what_it_names(&resources, name);
        }
        let service = resources.get("Service", "demo");
        assert_eq!(
            resources.selected(&service["spec"]["selector"]),
            ["demo-api"],
            "{values}"
        );
        for name in resources.names("PodDisruptionBudget") {
            let budget = resources.get("PodDisruptionBudget", name);
            let labels = &budget["spec"]["selector"]["matchLabels"];
            assert_eq!(resources.selected(labels), [name], "{values}");
        }
        for name in resources.names("NetworkPolicy") {
            let policy = resources.get("NetworkPolicy", name);
            let labels = &policy["spec"]["podSelector"]["matchLabels"];
            assert_eq!(resources.selected(labels), ["demo-api", "demo-worker"]);
            assert_eq!(policy["spec"]["ingress"][0]["ports"][0]["port"], "http");
        }
        for kind in ["HorizontalPodAutoscaler", "ScaledObject"] {
            for name in resources.names(kind) {
                let target = &resources.get(kind, name)["spec"]["scaleTargetRef"]["name"];
                // A deployment with a scaler has no number of its own, which each upgrade would set again.
                let scaled = resources.get("Deployment", text(target));
                assert_eq!(target, "demo-worker");
                assert!(scaled["spec"]["replicas"].is_null(), "{scaled}");
            }
        }
        for name in resources.names("ScaledObject") {
            let query = &resources.get("ScaledObject", name)["spec"]["triggers"][0]["metadata"]["query"];
            assert_eq!(query, "max(adjutant_queue_oldest_age_seconds{namespace=\"agents\"})");
        }
        for name in resources.names("Ingress") {
            let path = &resources.get("Ingress", name)["spec"]["rules"][0]["http"]["paths"][0];
            let backend = &path["backend"]["service"];
            let service = resources.get("Service", text(&backend["name"]));
            assert_eq!(service["spec"]["ports"][0]["name"], backend["port"]["name"]);
        }
    }
}

/// Reads a file of `deploy/prometheus`.
fn of_prometheus(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("deploy/prometheus")
        .join(name);
    serde_saphyr::from_str(&fs::read_to_string(path).expect("text")).expect("YAML")
}

#[test]
fn prometheus_finds_the_pods_of_the_chart_and_its_adapter_serves_what_the_chart_asks_for() {
    let Some(resources) = Resources::of(&few_values()) else {
        return;
    };
    let scraped = &of_prometheus("kubernetes.yaml")["scrape_configs"][0]["relabel_configs"];
    let keep = &scraped[0];
    assert_eq!(keep["action"], "keep");
    let asked = [
        "__meta_kubernetes_pod_label_app_kubernetes_io_name",
        "__meta_kubernetes_pod_container_port_name",
    ];
    assert_eq!(keep["source_labels"], json!(asked));
    for name in resources.names("Deployment") {
        let pod = &resources.get("Deployment", name)["spec"]["template"];
        let label = text(&pod["metadata"]["labels"]["app.kubernetes.io/name"]);
        let port = text(&pod["spec"]["containers"][0]["ports"][0]["name"]);
        assert_eq!(keep["regex"], format!("{label};{port}"), "{name}");
    }
    let has_namespace = |rule: &Value| rule["target_label"] == "namespace";
    assert!(
        list(scraped).iter().any(has_namespace),
        "scalers ask for the queue of a namespace"
    );
    let served = &of_prometheus("adapter.yaml")["rules"]["external"][0];
    let scaler = resources.get("HorizontalPodAutoscaler", "demo-worker");
    let metric = &scaler["spec"]["metrics"][0]["external"]["metric"];
    assert_eq!(served["name"]["as"], metric["name"]);
    assert!(metric["selector"].is_null(), "it is that of the namespace");
    assert_eq!(served["metricsQuery"], "max(<<.Series>>{<<.LabelMatchers>>})");
    // Workers leave slowly with either scaler.
    let Some(with_keda) = Resources::of(&all_values()) else {
        return;
    };
    let keda = &with_keda.get("ScaledObject", "demo-worker")["spec"]["advanced"];
    let behavior = &scaler["spec"]["behavior"];
    assert_eq!(behavior["scaleDown"]["stabilizationWindowSeconds"], 300);
    assert_eq!(keda["horizontalPodAutoscalerConfig"]["behavior"], *behavior);
}

/// Checks that a Deployment selects its own pods, and that its pods find their account, files and port.
fn finds_what_it_names(resources: &Resources, name: &str) {
    let deployment = resources.get("Deployment", name);
    let labels = &deployment["spec"]["selector"]["matchLabels"];
    assert_eq!(resources.selected(labels), [name]);
    let pod = &deployment["spec"]["template"]["spec"];
    resources.get("ServiceAccount", text(&pod["serviceAccountName"]));
    let container = &pod["containers"][0];
    let volumes: Vec<&str> = list(&pod["volumes"])
        .iter()
        .map(|volume| text(&volume["name"]))
        .collect();
    let mounts: Vec<&str> = list(&container["volumeMounts"])
        .iter()
        .map(|mount| text(&mount["name"]))
        .collect();
    assert_eq!(volumes, mounts);
    let files = files(resources, pod);
    assert!(!files.is_empty());
    for (path, content) in files {
        assert!(!content.is_empty(), "{path}");
    }
    let port = &container["ports"][0];
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], port["name"]);
    }
    assert_eq!(
        resources.get("Service", "demo")["spec"]["ports"][0]["targetPort"],
        port["name"]
    );
    let image = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Dockerfile")).expect("text");
    let listens = format!("ADJUTANT_LISTEN=0.0.0.0:{} ", port["containerPort"]);
    assert!(image.contains(&listens), "the image does not listen at {port}");
    let seconds = |variable: &str| -> i64 {
        let found = list(&container["env"]).iter().find(|env| env["name"] == variable);
        let value = text(&found.expect(variable)["value"]);
        value.parse().expect("a number")
    };
    let stopping = seconds("ADJUTANT_SERVER__DRAIN_S") + seconds("ADJUTANT_SERVER__SHUTDOWN_S");
    let grace = pod["terminationGracePeriodSeconds"].as_i64().expect("a number");
    assert!(grace > stopping, "{grace} s for {stopping} s");
}

/// Returns the files of the ConfigMap that a pod mounts, by their paths below the folder of the mount.
fn files(resources: &Resources, pod: &Value) -> BTreeMap<String, String> {
    let maps = list(&pod["volumes"])
        .iter()
        .filter(|volume| volume["configMap"].is_object());
    let mut files = BTreeMap::new();
    for map in maps.map(|volume| &volume["configMap"]) {
        let data = &resources.get("ConfigMap", text(&map["name"]))["data"];
        for item in list(&map["items"]) {
            let content = text(&data[text(&item["key"])]).to_owned();
            files.insert(text(&item["path"]).to_owned(), content);
        }
    }
    files
}

/// A container of the chart in a folder that stands for its file system.
struct Container<'a> {
    folder: tempfile::TempDir,
    role: &'a str,
    database: String,
}

impl Container<'_> {
    /// Returns the path in the folder that stands for one of the container.
    fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join(inside.trim_start_matches('/'))
    }

    /// Replaces the paths of mounts.
    fn translate(&self, text: &str) -> String {
        ["/etc/adjutant", "/run/secrets"]
            .iter()
            .fold(text.to_owned(), |text, mount| {
                text.replace(mount, &self.path(mount).display().to_string())
            })
    }

    /// Mounts files as Kubernetes does: in a folder beside the mount, to which links lead.
    fn mount(&self, inside: &str, files: &BTreeMap<String, String>) {
        let mount = self.path(inside);
        let version = mount.join("..2026_01_01_00_00_00.1");
        for (path, content) in files {
            let path = version.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
            fs::write(path, self.translate(content)).expect("it can be written");
        }
        symlink("..2026_01_01_00_00_00.1", mount.join("..data")).expect("a link");
        for entry in fs::read_dir(&version).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            symlink(Path::new("..data").join(&name), mount.join(&name)).expect("a link");
        }
    }

    /// Returns the variables of a container.
    fn variables(&self, container: &Value) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        for variable in list(&container["env"]) {
            let value = match variable["valueFrom"]["secretKeyRef"]["name"].as_str() {
                Some("adjutant-database") => self.database.clone(),
                Some(other) => panic!("the test has no Secret {other}"),
                None => self.translate(text(&variable["value"])),
            };
            variables.insert(text(&variable["name"]).to_owned(), value);
        }
        variables
    }

    /// Returns the command of a container.
    fn command(&self, container: &Value) -> Command {
        let mut command = server_in(self.folder.path());
        // The image has the port of the container, which may be taken here.
        command.env_clear().env("ADJUTANT_LISTEN", "0.0.0.0:0");
        command.envs(self.variables(container));
        command.args(list(&container["args"]).iter().map(text));
        command
    }
}

async fn the_servers_of_the_chart_start_and_answer_their_probes(server: TestServer) {
    let values = json!({
        "agents": all_values()["agents"],
        "drainSeconds": 0,
        "autoscaling": {"kind": "hpa"},
    });
    let Some(resources) = Resources::of(&values) else {
        return;
    };
    let database = server.database_url();
    for role in ["api", "worker"] {
        let pod = &resources.get("Deployment", &format!("demo-{role}"))["spec"]["template"]["spec"];
        let container = Container {
            folder: tempfile::tempdir().expect("a folder"),
            role,
            database: database.clone(),
        };
        container.mount("/etc/adjutant", &files(&resources, pod));
        let secrets = ["ops_key", "openai_api_key"].map(|name| (name.to_owned(), KEY.to_owned()));
        container.mount("/run/secrets/adjutant", &secrets.into());
        migrates(&container, &resources);
        serves(&container, &pod["containers"][0], &resources).await;
    }
}

/// Checks the Job before an upgrade.
fn migrates(container: &Container<'_>, resources: &Resources) {
    let job = resources.get("Job", "demo-migrate");
    let migrate = &job["spec"]["template"]["spec"]["containers"][0];
    let output = container.command(migrate).output().expect("the program starts");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// Checks the server in a container.
async fn serves(container: &Container<'_>, described: &Value, resources: &Resources) {
    let process = Process::start(container.command(described)).await;
    let base = process.base().await;
    let http = adjutant::net::client_builder().build().expect("a client");
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let path = text(&described[probe]["httpGet"]["path"]);
        let answer = http.get(format!("{base}{path}")).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{}: {path}", container.role);
    }
    let autoscaler = resources.get("HorizontalPodAutoscaler", "demo-worker");
    let metric = text(&autoscaler["spec"]["metrics"][0]["external"]["metric"]["name"]);
    let asked = http.get(format!("{base}/metrics")).bearer_auth(KEY).send().await;
    let metrics = asked.expect("an answer").text().await.expect("text");
    assert!(
        metrics.lines().any(|line| line.starts_with(&format!("{metric} "))),
        "{}: {metrics}",
        container.role
    );
    if container.role == "api" {
        // Under the name of the Service in the cluster.
        let search = http
            .post(format!("{base}/assistants/search"))
            .header("host", "demo.agents.svc.cluster.local")
            .bearer_auth(KEY)
            .json(&json!({}));
        let found = search.send().await.expect("an answer").text().await.expect("text");
        for graph_id in ["agent", "reviewer"] {
            let named = format!("\"graph_id\":\"{graph_id}\"");
            assert!(found.contains(&named), "{graph_id}: {found}");
        }
    }
    process.terminates().await;
}
