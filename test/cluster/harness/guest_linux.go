package harness

import (
	"errors"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/tapir-cni/tapir/internal/microvm"
)

// Guest makes what the guests of microVM pods boot of image, with the programs in bin and among the cluster's images, and gives what makes a pod of
// image probe a microVM's: its guest runs probe at the pod's addresses.
func (c *Cluster) Guest(image microvm.Image, bin string) (change func(*corev1.Pod), err error) {
	initrd := filepath.Join(c.Dir, "guest-with-probe.cpio")
	if err := withProbe(image.Initrd, initrd, filepath.Join(c.o.Images, "probe"), filepath.Join(bin, "tapir-guest")); err != nil {
		return nil, err
	}
	yes, hostToContainer := true, corev1.MountPropagationHostToContainer
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations["tapir.dev/tap"] = "true"
		p.Spec.Volumes = []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		container := &p.Spec.Containers[0]
		container.Image = "localhost/vmpod:1"
		container.Args = []string{"-kernel", image.Kernel, "-initrd", initrd, "-tapirctl", filepath.Join(bin, "tapirctl")}
		container.SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		container.VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/host", MountPropagation: &hostToContainer}}
	}, nil
}

// withProbe is the guests' image with probe as the first process, which then becomes the agent.
func withProbe(initrd, out, probe, agent string) error {
	base, err := os.ReadFile(initrd)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(probe)
	if err != nil {
		return err
	}
	next, err := os.ReadFile(agent)
	if err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	_, err = f.Write(base)
	archive := microvm.NewCPIO(f)
	archive.File("init", 0o755, program)
	archive.File("agent", 0o755, next)
	return errors.Join(err, archive.Close(), f.Close())
}
