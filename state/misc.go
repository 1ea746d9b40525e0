package state

// SaveSysctl remembers the value that a sysctl had before tapir changed it. The first value saved stays.
func (tx *Tx) SaveSysctl(name, value string) error {
	old, err := tx.get(bucketSysctls, []byte(name))
	if err != nil || old != nil {
		return err
	}
	return tx.put(bucketSysctls, []byte(name), []byte(value))
}

// Sysctls are the saved values by name.
func (tx *Tx) Sysctls() (map[string]string, error) {
	saved := map[string]string{}
	err := tx.each(bucketSysctls, nil, func(k, v []byte) error {
		saved[string(k)] = string(v)
		return nil
	})
	return saved, err
}

// DeleteSysctl forgets a saved value, once it is restored.
func (tx *Tx) DeleteSysctl(name string) error { return tx.delete(bucketSysctls, []byte(name)) }

// Misc is what was kept for a network under a name; nil where nothing was.
func (tx *Tx) Misc(network, name string) ([]byte, error) {
	return tx.get(bucketMisc, []byte(network+"\x00"+name))
}

// PutMisc keeps a value for a network under a name; nil removes it.
func (tx *Tx) PutMisc(network, name string, value []byte) error {
	key := []byte(network + "\x00" + name)
	if value == nil {
		return tx.delete(bucketMisc, key)
	}
	return tx.put(bucketMisc, key, value)
}
