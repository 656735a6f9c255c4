export default function Page() {
  return <h1>Next in a berth</h1>
}
