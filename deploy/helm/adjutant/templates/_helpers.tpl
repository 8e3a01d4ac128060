{{/* The name of all resources. */}}
{{- define "adjutant.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* The labels by which the pods of a role are found. Takes a list: the root and the role. */}}
{{- define "adjutant.selector" -}}
app.kubernetes.io/name: adjutant
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "adjutant.labels" -}}
app.kubernetes.io/name: adjutant
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "adjutant.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{/* The key of a file of the folder of agents in the ConfigMap, where keys have no slashes. */}}
{{- define "adjutant.fileKey" -}}
{{ printf "agents.%s" (replace "/" "." .) | quote }}
{{- end -}}

{{/* What every container of the chart may not do. */}}
{{- define "adjutant.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "adjutant.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{/* The Deployment of a role. Takes a list: the root, the role, and the values of the role. */}}
{{- define "adjutant.deployment" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $servers := index . 2 -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "adjutant.name" $root }}-{{ $role }}
  labels:
    {{- include "adjutant.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
spec:
  {{- if not (and (eq $role "worker") (ne $root.Values.autoscaling.kind "none")) }}
  replicas: {{ $servers.replicas }}
  {{- end }}
  strategy:
    type: RollingUpdate
    rollingUpdate: { maxUnavailable: 0, maxSurge: 1 }
  selector:
    matchLabels:
      {{- include "adjutant.selector" (list $root $role) | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "adjutant.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ $role }}
      annotations:
        # A change of the configuration makes new pods.
        adjutant/config: {{ list $root.Values.config $root.Values.agents | toJson | sha256sum }}
        {{- with $servers.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "adjutant.name" $root }}
      automountServiceAccountToken: false
      # The variables of a Service called adjutant would look like settings.
      enableServiceLinks: false
      # Longer than the server takes to stop.
      terminationGracePeriodSeconds: {{ add $root.Values.drainSeconds $root.Values.shutdownSeconds 15 }}
      securityContext:
        {{- include "adjutant.podSecurity" $root | nindent 8 }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "adjutant.selector" (list $root $role) | nindent 14 }}
      containers:
        - name: adjutant
          image: {{ include "adjutant.image" $root | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          securityContext:
            {{- include "adjutant.confined" $root | nindent 12 }}
          ports:
            - name: http
              containerPort: 8123
          env:
            - name: ADJUTANT_CONFIG
              value: /etc/adjutant/adjutant.toml
            - name: ADJUTANT_ROLE
              value: {{ $role }}
            - name: ADJUTANT_SERVER__DRAIN_S
              value: {{ $root.Values.drainSeconds | quote }}
            - name: ADJUTANT_SERVER__SHUTDOWN_S
              value: {{ $root.Values.shutdownSeconds | quote }}
            - name: ADJUTANT_SERVER__HOSTS
              value: {{ include "adjutant.hosts" $root | quote }}
            - name: ADJUTANT_LOG_FORMAT
              value: json
            - name: ADJUTANT_DATABASE_URL
              valueFrom:
                secretKeyRef:
                  name: {{ $root.Values.database.secretName }}
                  key: {{ $root.Values.database.urlKey }}
            {{- if $root.Values.nats.secretName }}
            - name: ADJUTANT_CLUSTER__NATS
              valueFrom:
                secretKeyRef:
                  name: {{ $root.Values.nats.secretName }}
                  key: {{ $root.Values.nats.urlKey }}
            {{- else if $root.Values.nats.url }}
            - name: ADJUTANT_CLUSTER__NATS
              value: {{ $root.Values.nats.url | quote }}
            {{- end }}
            {{- with $root.Values.nats.sslrootcert }}
            - name: ADJUTANT_CLUSTER__NATS_SSLROOTCERT
              value: {{ . | quote }}
            {{- end }}
            {{- with $root.Values.nats.sslcert }}
            - name: ADJUTANT_CLUSTER__NATS_SSLCERT
              value: {{ . | quote }}
            {{- end }}
            {{- with $root.Values.nats.sslkey }}
            - name: ADJUTANT_CLUSTER__NATS_SSLKEY
              value: {{ . | quote }}
            {{- end }}
            {{- with $root.Values.env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- with $root.Values.envFromSecrets }}
          envFrom:
            {{- range . }}
            - secretRef: { name: {{ . }} }
            {{- end }}
          {{- end }}
          # A server that migrates at its first start listens only then.
          startupProbe:
            httpGet: { path: /ok, port: http }
            periodSeconds: 2
            failureThreshold: 60
          # 503 when the server is about to stop, or its database is away.
          readinessProbe:
            httpGet: { path: /ready, port: http }
            periodSeconds: 2
            timeoutSeconds: 3
            failureThreshold: 1
          # Says nothing about the database: to restart the servers would not bring it back.
          livenessProbe:
            httpGet: { path: /ok, port: http }
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          resources:
            {{- toYaml $servers.resources | nindent 12 }}
          volumeMounts:
            - name: config
              mountPath: /etc/adjutant
              readOnly: true
            - name: tmp
              mountPath: /tmp
            - name: data
              mountPath: /data
            {{- range $folder, $secret := $root.Values.secretFolders }}
            - name: secret-{{ $folder }}
              mountPath: /run/secrets/{{ $folder }}
              readOnly: true
            {{- end }}
      volumes:
        - name: config
          configMap:
            name: {{ include "adjutant.name" $root }}
            items:
              - { key: adjutant.toml, path: adjutant.toml }
              {{- range $file, $text := $root.Values.agents }}
              - { key: {{ include "adjutant.fileKey" $file }}, path: {{ printf "agents/%s" $file | quote }} }
              {{- end }}
        - name: tmp
          emptyDir: {}
        - name: data
          emptyDir: {}
        {{- range $folder, $secret := $root.Values.secretFolders }}
        - name: secret-{{ $folder }}
          secret:
            secretName: {{ $secret }}
        {{- end }}
      {{- with $servers.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $servers.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $servers.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}

{{/* The names under which clients reach the servers, as a list of TOML. */}}
{{- define "adjutant.hosts" -}}
{{- $name := include "adjutant.name" . -}}
{{- $space := .Release.Namespace -}}
{{- $hosts := list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) (printf "%s.%s.svc.cluster.local" $name $space) -}}
{{- if .Values.ingress.enabled -}}
{{- $hosts = append $hosts .Values.ingress.host -}}
{{- end -}}
{{- concat $hosts .Values.hosts | toJson -}}
{{- end -}}

{{/* The pace at which workers leave. One gives its runs back after a step, but tools that must not be repeated are waited for. */}}
{{- define "adjutant.scaling" -}}
scaleDown:
  stabilizationWindowSeconds: 300
  policies: [{ type: Pods, value: 1, periodSeconds: 60 }]
{{- end -}}
