// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DevServerSpec says what server is wanted.
// +kubebuilder:validation:XValidation:rule=`(has(self.session) ? self.session : "") == (has(oldSelf.session) ? oldSelf.session : "")`,message="session is immutable: delete the object and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.runtime) == has(oldSelf.runtime) && (!has(self.runtime) || self.runtime.type == oldSelf.runtime.type)",message="runtime is immutable, but for what is in pod: delete the object and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.instanceRef) == has(oldSelf.instanceRef) && (!has(self.instanceRef) || self.instanceRef == oldSelf.instanceRef)",message="instanceRef is immutable: delete the object and create it anew"
// +kubebuilder:validation:XValidation:rule="!has(self.state) || self.state != 'OnDemand'",message="state OnDemand is for LanguageServers only: use Running or Stopped"
// +kubebuilder:validation:XValidation:rule="!has(self.runtime) || self.runtime.type != 'Pod' || !has(self.proxy) || self.proxy != 'Enabled'",message="there is no proxy for a Pod: the Service of the DevServer is the address that stays; set proxy to Disabled"
// +kubebuilder:validation:XValidation:rule="!has(self.runtime) || self.runtime.type != 'Pod' || !(has(self.readiness) && has(self.readiness.exec) || has(self.liveness) && has(self.liveness.exec))",message="exec probes are run beside the manager, which has nothing of a Pod: use httpGet or tcpSocket"
type DevServerSpec struct {
	ProcessSpec `json:",inline"`

	// Where the process runs. Immutable, but for what is in pod. Defaults to the runtime that the manager was started with.
	// +optional
	Runtime *RuntimeSpec `json:"runtime,omitempty"`

	// The port to listen on. Unset: Berth chooses one and keeps it as long as the object exists.
	// In a Pod that is 8080, and the Service of the DevServer has the same port.
	// Either way the program finds it as $(PORT) and as the variable PORT; behind a proxy it is the port of that, and $(PORT) another one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// Enabled: Berth itself listens on the port, and sends HTTP requests on to the server, which listens on status.backendPort. While the
	// server restarts, requests wait instead of being refused. Defaults to Disabled: the server listens on the port.
	// +optional
	// +kubebuilder:default=Disabled
	Proxy ProxyMode `json:"proxy,omitempty"`

	// allowedHosts lists the host names, beside localhost and the loopback addresses, under which the proxy answers, and whose pages may open
	// WebSockets: lower-case DNS names, *.example.com for all names below one, or IPv4 addresses. At most 16. The proxy answers 403 to requests
	// for any other host, because a web page of another site may have sent them. Unset: no others. Without a proxy it has no effect.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$')`,message="each of allowedHosts must be a DNS name in lower case without a port, such as dev.example.com or *.example.com"
	// +listType=set
	AllowedHosts []string `json:"allowedHosts,omitempty"`

	// How status.url is made.
	// +optional
	// +kubebuilder:default={}
	URL URLSpec `json:"url,omitzero"`

	// When the server counts as ready. Unset: when one of its processes listens on a TCP port and has answered there once.
	// +optional
	Readiness *Probe `json:"readiness,omitempty"`

	// When the server is restarted although it runs. Unset: never. It starts to count once the server was ready.
	// +optional
	Liveness *Probe `json:"liveness,omitempty"`

	// The Instance that this server belongs to: when that is deleted, so is this. Immutable.
	// +optional
	InstanceRef *LocalReference `json:"instanceRef,omitempty"`
}

// ProxyMode says whether Berth stands in front of the server.
// +kubebuilder:validation:Enum=Enabled;Disabled
type ProxyMode string

const (
	// ProxyEnabled has Berth listen on the port and send requests on, so that the address outlives restarts of the server.
	ProxyEnabled ProxyMode = "Enabled"
	// ProxyDisabled has the server listen on the port itself.
	ProxyDisabled ProxyMode = "Disabled"
)

// URLDetection says whether the URL is looked for in the output of the server.
// +kubebuilder:validation:Enum=Enabled;Disabled
type URLDetection string

const (
	// URLDetectionEnabled takes scheme and path from the first URL in the output whose port the server really listens on.
	URLDetectionEnabled URLDetection = "Enabled"
	// URLDetectionDisabled takes scheme and path from the spec alone.
	URLDetectionDisabled URLDetection = "Disabled"
)

// URLSpec says how status.url is made.
type URLSpec struct {
	// http or https. Unset: what the output says, else http. Behind a proxy it is how that speaks to the server, http if unset; the address of
	// the proxy itself begins with http.
	// +optional
	// +kubebuilder:validation:Enum=http;https
	Scheme string `json:"scheme,omitempty"`

	// The path, which begins with a slash. Unset: what the output says, else /.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self == '' || self.startsWith('/')",message="path must begin with /"
	Path string `json:"path,omitempty"`

	// Whether scheme, host and path are looked for in the output. Defaults to Enabled.
	// +optional
	// +kubebuilder:default=Enabled
	Detect URLDetection `json:"detect,omitempty"`
}

// Probe asks a server how it is.
// +kubebuilder:validation:XValidation:rule="(has(self.httpGet) ? 1 : 0) + (has(self.tcpSocket) ? 1 : 0) + (has(self.exec) ? 1 : 0) == 1",message="set exactly one of httpGet, tcpSocket and exec"
type Probe struct {
	// Succeeds on an HTTP status from 200 to 399.
	// +optional
	HTTPGet *HTTPGetProbe `json:"httpGet,omitempty"`

	// Succeeds when a connection can be made.
	// +optional
	TCPSocket *TCPSocketProbe `json:"tcpSocket,omitempty"`

	// Succeeds when the command ends with exit code 0.
	// +optional
	Exec *ExecProbe `json:"exec,omitempty"`

	// Seconds between two probes. Defaults to 5. While a server is not ready yet it is asked more often.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	PeriodSeconds *int32 `json:"periodSeconds,omitempty"`

	// Seconds until a probe that got no answer has failed. Defaults to 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// Failures in a row after which the server is not ready (readiness) or restarted (liveness). Defaults to 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FailureThreshold *int32 `json:"failureThreshold,omitempty"`
}

// HTTPGetProbe is a GET request to 127.0.0.1, or to the address of the Pod.
type HTTPGetProbe struct {
	// The path to ask for. Defaults to /.
	// +optional
	// +kubebuilder:default=/
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="path must begin with /"
	Path string `json:"path,omitempty"`

	// The port to ask. Unset: the one that the server listens on.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// http or https; a certificate is not verified. Defaults to http.
	// +optional
	// +kubebuilder:default=http
	// +kubebuilder:validation:Enum=http;https
	Scheme string `json:"scheme,omitempty"`
}

// TCPSocketProbe is a connection to 127.0.0.1, or to the address of the Pod.
type TCPSocketProbe struct {
	// The port to connect to. Unset: the one that the server listens on.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
}

// ExecProbe is a command that is run beside the server, with its environment and in its working directory.
type ExecProbe struct {
	// The program and its arguments; no shell takes part.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Command []string `json:"command"`
}

// DevServerStatus is what is known of a server.
type DevServerStatus struct {
	ProcessStatus `json:",inline"`

	// Where the server answers. It stays readable while the server restarts. The host is the one that the output names if it is localhost, a name below it or
	// a loopback address, and leads to the server; else an address on which the server listens. Behind a proxy it is localhost.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`

	// The port that the server was given: spec.port, or the one that Berth chose. Behind a proxy it is the port of that.
	// +optional
	Port int32 `json:"port,omitempty"`

	// Behind a proxy, the port that the server was given to listen on; Berth chose it. Else 0.
	// +optional
	BackendPort int32 `json:"backendPort,omitempty"`

	// The TCP ports that the processes of this object listen on, ascending; the first 16.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	ObservedPorts []int32 `json:"observedPorts,omitempty"`
}

// DevServer is a server that is used while something is developed, found at status.url.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=dsv
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.status.url`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restartCount`
// +kubebuilder:printcolumn:name="Session",type=string,JSONPath=`.spec.session`,priority=1
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.hostName`,priority=1
// +kubebuilder:printcolumn:name="PID",type=integer,JSONPath=`.status.process.pid`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.session`
// +kubebuilder:selectablefield:JSONPath=`.spec.state`
type DevServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is wanted.
	// +required
	Spec DevServerSpec `json:"spec"`

	// What is; written by Berth alone.
	// +optional
	Status DevServerStatus `json:"status,omitempty"`
}

// GetProcessSpec gives the part of the spec that all process kinds share.
func (d *DevServer) GetProcessSpec() *ProcessSpec { return &d.Spec.ProcessSpec }

// GetProcessStatus gives the part of the status that all process kinds share.
func (d *DevServer) GetProcessStatus() *ProcessStatus { return &d.Status.ProcessStatus }

// DevServerList is a list of DevServers.
// +kubebuilder:object:root=true
type DevServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DevServer `json:"items"`
}
