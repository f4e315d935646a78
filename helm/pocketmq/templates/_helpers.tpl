{{- define "pocketmq.name" -}}
{{- if contains "pocketmq" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-pocketmq" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pocketmq.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "pocketmq.selector" . }}
{{- end -}}

{{- define "pocketmq.selector" -}}
app.kubernetes.io/name: pocketmq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pocketmq.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}

{{- define "pocketmq.hasUsers" -}}
{{- if or .Values.users.existingSecret .Values.users.file }}yes{{ end -}}
{{- end -}}

{{- define "pocketmq.usersSecret" -}}
{{ .Values.users.existingSecret | default (printf "%s-users" (include "pocketmq.name" .)) }}
{{- end -}}

{{/* host:port of each name server of a replica set. */}}
{{- define "pocketmq.nameservers" -}}
{{- $name := include "pocketmq.name" . -}}
{{- range $number := until (int .Values.replicaSet.nameservers) -}}
{{- if $number }},{{ end -}}
{{ printf "%s-nameserver-%d.%s-nameservers.%s.svc:9876" $name $number $name $.Release.Namespace }}
{{- end -}}
{{- end -}}

{{/*
The settings of all pods. @POD@ stands for the pod's own name, and @ID@ for its number in a replica set; a pod fills
them in when it starts.
*/}}
{{- define "pocketmq.settings" -}}
{{- $name := include "pocketmq.name" . -}}
{{- $nameserver := dict "host" "0.0.0.0" -}}
{{- $broker := dict "host" "0.0.0.0" "advertised_address" .Values.advertisedAddress -}}
{{- $own := dict "nameserver" $nameserver "broker" $broker "store" (dict "path" "/store/data") -}}
{{- if include "pocketmq.hasUsers" . -}}
{{- $_ := set $nameserver "users" "/run/pocketmq/users.yaml" -}}
{{- $_ := set $broker "users" "/run/pocketmq/users.yaml" -}}
{{- end -}}
{{- if .Values.tls.existingSecret -}}
{{- range $section := list $nameserver $broker -}}
{{- $_ := set $section "tls_cert" "/etc/pocketmq/tls/tls.crt" -}}
{{- $_ := set $section "tls_key" "/etc/pocketmq/tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- if .Values.replicaSet.enabled -}}
{{- $host := printf "@POD@.%s-brokers.%s.svc" $name .Release.Namespace -}}
{{- $_ := set $broker "advertised_address" (printf "%s:8081" $host) -}}
{{- $_ := set $broker "nameservers" (splitList "," (include "pocketmq.nameservers" .)) -}}
{{- $replication := dict "replica_set" .Values.replicaSet.name "replica_id" "@ID@" "zookeeper" .Values.replicaSet.zookeeper -}}
{{- $_ := set $replication "listen" "0.0.0.0:8082" -}}
{{- $_ := set $replication "address" (printf "%s:8082" $host) -}}
{{- $_ := set $replication "min_in_sync" (int .Values.replicaSet.minInSync) -}}
{{- $_ := set $replication "tls_cert" "/etc/pocketmq/replicas/replica.pem" -}}
{{- $_ := set $replication "tls_key" "/etc/pocketmq/replicas/replica.key" -}}
{{- $_ := set $replication "tls_ca" "/etc/pocketmq/replicas/replicas-ca.pem" -}}
{{- with .Values.replicaSet.zookeeperAccess -}}
{{- if .existingSecret -}}
{{- $_ := set $replication "zookeeper_tls_ca" "/etc/pocketmq/zookeeper/ca.pem" -}}
{{- end -}}
{{- if .auth -}}
{{- $_ := set $replication "zookeeper_auth" .auth -}}
{{- $_ := set $replication "zookeeper_user" .user -}}
{{- $_ := set $replication "zookeeper_secret_file" "/run/pocketmq/zookeeper-secret" -}}
{{- end -}}
{{- end -}}
{{- $_ := set $own "replication" $replication -}}
{{- else if not .Values.advertisedAddress -}}
{{- $_ := set $broker "advertised_address" (printf "%s.%s.svc:8081" $name .Release.Namespace) -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) $own | toYaml | replace "'@ID@'" "@ID@" -}}
{{- end -}}

{{/* What a pod does before it serves: it fills its names in, and takes the users' file, which must be its own. */}}
{{- define "pocketmq.prepare" -}}
set -eu
umask 077
number=${HOSTNAME##*-}
case $number in *[!0-9]*) number=0 ;; esac
id=$(( number + 1 ))
sed "s/@POD@/$HOSTNAME/g; s/@ID@/$id/g" /etc/pocketmq/settings/pocketmq.yaml > /run/pocketmq/pocketmq.yaml
{{- if include "pocketmq.hasUsers" . }}
cp /etc/pocketmq/users/users.yaml /run/pocketmq/users.yaml
chmod 600 /run/pocketmq/users.yaml
{{- end }}
{{- if and .Values.replicaSet.enabled .Values.replicaSet.zookeeperAccess.auth }}
cp /etc/pocketmq/zookeeper/secret /run/pocketmq/zookeeper-secret
chmod 600 /run/pocketmq/zookeeper-secret
{{- end }}
{{- end -}}

{{- define "pocketmq.podSecurity" -}}
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
runAsNonRoot: true
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "pocketmq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "pocketmq.mounts" -}}
- { name: settings, mountPath: /etc/pocketmq/settings, readOnly: true }
- { name: run, mountPath: /run/pocketmq }
- { name: tmp, mountPath: /tmp }
{{- if include "pocketmq.hasUsers" . }}
- { name: users, mountPath: /etc/pocketmq/users, readOnly: true }
{{- end }}
{{- if .Values.tls.existingSecret }}
- { name: tls, mountPath: /etc/pocketmq/tls, readOnly: true }
{{- end }}
{{- if .Values.replicaSet.enabled }}
- { name: replicas, mountPath: /etc/pocketmq/replicas, readOnly: true }
{{- if .Values.replicaSet.zookeeperAccess.existingSecret }}
- { name: zookeeper, mountPath: /etc/pocketmq/zookeeper, readOnly: true }
{{- end }}
{{- end }}
{{- end -}}

{{- define "pocketmq.volumes" -}}
- name: settings
  configMap: { name: {{ include "pocketmq.name" . }} }
- name: run
  emptyDir: { medium: Memory, sizeLimit: 16Mi }
- name: tmp
  emptyDir: { sizeLimit: 64Mi }
{{- if include "pocketmq.hasUsers" . }}
- name: users
  secret: { secretName: {{ include "pocketmq.usersSecret" . }} }
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: tls
  secret: { secretName: {{ .Values.tls.existingSecret }} }
{{- end }}
{{- if .Values.replicaSet.enabled }}
- name: replicas
  secret: { secretName: {{ .Values.replicaSet.certificates.existingSecret }} }
{{- if .Values.replicaSet.zookeeperAccess.existingSecret }}
- name: zookeeper
  secret: { secretName: {{ .Values.replicaSet.zookeeperAccess.existingSecret }} }
{{- end }}
{{- end }}
{{- end -}}

{{- define "pocketmq.annotations" -}}
checksum/settings: {{ include "pocketmq.settings" . | sha256sum }}
checksum/users: {{ .Values.users.file | sha256sum }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A start reads the log behind the last verified point: minutes, after a kill with much in it. */}}
{{- define "pocketmq.probes" -}}
startupProbe:
  exec: { command: [pocketmq, health, {{ .which }}, "127.0.0.1:{{ .port }}"] }
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 120
livenessProbe:
  exec: { command: [pocketmq, health, {{ .which }}, "127.0.0.1:{{ .port }}", --timeout, 10s] }
  periodSeconds: 20
  timeoutSeconds: 15
  failureThreshold: 3
readinessProbe:
  exec: { command: [pocketmq, health, {{ .which }}, "127.0.0.1:{{ .port }}"] }
  periodSeconds: 10
  timeoutSeconds: 10
{{- end -}}
