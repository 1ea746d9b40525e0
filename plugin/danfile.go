package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// danTemp is the file that is written before it has its name. Who has the folder's lock has it alone.
const danTemp = ".tapir.new"

// danWait bounds how long a call waits for another one that writes in the folder.
const danWait = 10 * time.Second

// danIdentity is what tells devices of a file apart.
type danIdentity struct {
	Name   string `json:"name"`
	Device struct {
		Type    string `json:"type"`
		TapName string `json:"tap_name"`
	} `json:"device"`
}

// identify reads it; of what cannot be read nothing is tapir's.
func identify(raw json.RawMessage) (id danIdentity) {
	if json.Unmarshal(raw, &id) != nil {
		return danIdentity{}
	}
	return id
}

func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

// putDANDevice writes the attachment's device into its sandbox's file, beside those of the sandbox's other interfaces. Another one of the
// same name in the guest is an error.
func putDANDevice(host *rtnl.Conn, rec *state.Attachment) error {
	dir := filepath.Dir(rec.DAN)
	if err := makeDANDir(dir); err != nil {
		return err
	}
	unlock, err := lockDAN(dir)
	if err != nil {
		return err
	}
	defer unlock()
	file, err := readDAN(rec.DAN)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return withCode(CodeBusy, fmt.Errorf("DAN file: %w; it is none of tapir's: remove it", err))
	}
	file.Devices = slices.DeleteFunc(file.Devices, func(raw json.RawMessage) bool { return ownDANDevice(host, rec, identify(raw)) })
	for _, raw := range file.Devices {
		if id := identify(raw); id.Name == rec.IfName {
			return withCode(CodeBusy, fmt.Errorf("DAN file %s: the sandbox has a device %q already, tap %q; give this interface another CNI_IFNAME", rec.DAN, id.Name, id.Device.TapName))
		}
		if file.Netns != rec.Netns {
			return withCode(CodeBusy, fmt.Errorf("DAN file %s: it is of netns %q, want %q; DEL what the sandbox had before", rec.DAN, file.Netns, rec.Netns))
		}
	}
	device, err := json.Marshal(danDeviceOf(rec))
	if err != nil {
		return fmt.Errorf("DAN file: %w", err)
	}
	return writeDAN(rec.DAN, danFile{Netns: rec.Netns, Devices: append(file.Devices, device)})
}

// removeDANDevice takes the attachment's device out of a file, and the file away with the last one. Nothing there is success. host is
// opened where nil. made says that tapir had made the file whole: what cannot be read now is no use to anybody, and goes.
func removeDANDevice(host *rtnl.Conn, rec *state.Attachment, path string, made bool) (err error) {
	dir := filepath.Dir(path)
	if !exists(path) && !exists(filepath.Join(dir, danTemp)) {
		return nil
	}
	unlock, err := lockDAN(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if err := removeFile(filepath.Join(dir, danTemp)); err != nil {
		return err
	}
	file, err := readDAN(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil && made:
		return removeFile(path)
	case err != nil:
		return nil
	}
	if host == nil {
		if host, err = rtnl.Open(); err != nil {
			return err
		}
		defer host.Close()
	}
	had := len(file.Devices)
	file.Devices = slices.DeleteFunc(file.Devices, func(raw json.RawMessage) bool { return ownDANDevice(host, rec, identify(raw)) })
	switch len(file.Devices) {
	case had:
		return nil
	case 0:
		return removeFile(path)
	}
	return writeDAN(path, file)
}

// ownDANDevice tells whether a device is the attachment's: by name in the guest, and by its TAP, which has a name that is recorded or
// derived, or the attachment's tag, or is gone, so that the entry is of no use to anybody.
func ownDANDevice(host *rtnl.Conn, rec *state.Attachment, id danIdentity) bool {
	if id.Name != rec.IfName || id.Device.Type != hostTap {
		return false
	}
	if id.Device.TapName == rec.TAP.Name || id.Device.TapName == hostTapName(rec.Key) {
		return true
	}
	link, err := host.LinkByName(id.Device.TapName)
	return rtnl.Gone(err) || err == nil && link.Attrs().Alias == rec.Alias()
}

// makeDANDir makes the folder for root alone: what is in it decides what a VMM opens.
func makeDANDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("DAN folder: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("DAN folder: %w", err)
	}
	return nil
}

// lockDAN takes the folder's lock: the interfaces of a sandbox share a file.
func lockDAN(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("DAN folder: %w", err)
	}
	for deadline := time.Now().Add(danWait); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(fmt.Errorf("lock DAN folder %s: %w", dir, err), f.Close())
		case time.Now().After(deadline):
			err = fmt.Errorf("lock DAN folder %s: another process has had it for %s", dir, danWait)
			return nil, errors.Join(withCode(types.ErrTryAgainLater, err), f.Close())
		}
	}
}

func readDAN(path string) (danFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return danFile{}, err
	}
	var file danFile
	if err := json.Unmarshal(data, &file); err != nil {
		return danFile{}, fmt.Errorf("read %s: %w", path, err)
	}
	return file, nil
}

// writeDAN replaces the file as a whole, for whoever reads it at any moment.
func writeDAN(path string, file danFile) (err error) {
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return fmt.Errorf("DAN file: %w", err)
	}
	temp := filepath.Join(filepath.Dir(path), danTemp)
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("DAN file: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("DAN file: %w", err), removeFile(temp))
	}
	return nil
}

// removeFile removes a file; one that is not there is success.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("DAN file: %w", err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
