package deploy

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// commands are those of the image, of TAPIR_BIN_DIR or built here.
func commands(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("TAPIR_BIN_DIR"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir, "./cmd/tapird", "./cmd/tapir", "./cmd/tapir-ipam", "./cmd/tapirctl")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the commands: %v\n%s", err, out)
	}
	return dir
}

// files are an overlay's tapird.json and conflist.json, in a folder. What tapird installs is what is in bin.
func files(t *testing.T, overlay, bin string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range of[*corev1.ConfigMap](build(t, filepath.Join(root, overlay)))[0].Data {
		// Where the DaemonSet mounts the template, and where the image has the programs.
		text = strings.NewReplacer("/etc/tapir/", dir+"/", "/opt/tapir/bin", bin).Replace(text)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTapirdTakesItsConfiguration(t *testing.T) {
	bin := commands(t)
	check := func(file string) (string, error) {
		cmd := exec.Command(filepath.Join(bin, "tapird"), "--check", "--config", file)
		cmd.Env = append(os.Environ(), "NODE_NAME=node1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			file := filepath.Join(files(t, overlay, bin), "tapird.json")
			if out, err := check(file); err != nil && !strings.Contains(out, "/dev/net/tun") {
				t.Errorf("tapird --check: %v\n%s", err, out)
			}
			// The control: a key with a slip is not taken.
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			wrong := strings.Replace(string(data), `"install"`, `"instal"`, 1)
			if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := check(file); err == nil || !strings.Contains(out, "instal") {
				t.Errorf("tapird --check of a wrong key: want it named, got %v\n%s", err, out)
			}
		})
	}
}

// The plugin checks all of a configuration before anything else: an ADD for a namespace that is not there says so (code 8) where the configuration is right, and
// names every fault (code 7) where it is not.
func TestThePluginTakesTheTemplate(t *testing.T) {
	bin := commands(t)
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(files(t, overlay, bin), "conflist.json"))
			if err != nil {
				t.Fatal(err)
			}
			conf := pluginConf(t, data)
			if code, msg := add(t, bin, conf); code != 8 {
				t.Errorf("ADD by the template: want code 8, the namespace is not there, got %d: %s", code, msg)
			}
			conf["qeues"] = 2
			if code, msg := add(t, bin, conf); code != 7 || !strings.Contains(msg, "qeues") {
				t.Errorf("ADD with a wrong key: want code 7 that names it, got %d: %s", code, msg)
			}
		})
	}
}

// pluginConf is what the runtime would give the tapir plugin of a template whose ranges tapird filled in.
func pluginConf(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Plugins {
		if p["type"] != "tapir" {
			continue
		}
		p["cniVersion"], p["name"] = list.CNIVersion, list.Name
		p["podAnnotations"] = []string{"queues"}
		delete(p, "when") // a pod that did not ask for a TAP goes through a chained tapir unseen
		if ipam, ok := p["ipam"].(map[string]any); ok {
			ipam["ranges"] = [][]map[string]any{{{"subnet": "10.244.1.0/24"}}, {{"subnet": "fd00:244::/64"}}}
		} else {
			p["prevResult"] = map[string]any{
				"cniVersion": list.CNIVersion, "interfaces": []map[string]any{{"name": "eth0", "sandbox": "/run/netns/of-nobody"}},
				"ips": []map[string]any{{"address": "10.9.0.2/24", "interface": 0}},
			}
		}
		return p
	}
	t.Fatal("the template has no plugin tapir")
	return nil
}

func add(t *testing.T, bin string, conf map[string]any) (int, string) {
	t.Helper()
	data, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "tapir"))
	cmd.Stdin = strings.NewReader(string(data))
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_PATH=" + bin, "CNI_NETNS=/run/netns/of-nobody"}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("ADD: want a refusal, got %v\n%s", err, out)
	}
	var said struct {
		Code int
		Msg  string
	}
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatalf("ADD: %v\n%s", err, out)
	}
	return said.Code, said.Msg
}
