// WideChecker: P8, watched at the reference server's side.
//
// Its own idea of who stands where comes from the world, not from the server. "Touched" is a
// (content, datacenter) of which a read has failed there: a second entry is then no offence.
//
//   - of one content only one replica of a datacenter reads from outside it;
//   - nobody reads from outside while a whole copy is in his datacenter;
//   - an update takes the newest version that is whole in its datacenter; it crosses only when none
//     there is newer than what it held;
//   - an update that answers "nothing" while a newer version exists elsewhere leaves it to somebody
//     who is bringing it, or to somebody who could do it better, and that not for ever;
//   - replicate never answers "nothing";
//   - the newest whole version of a datacenter is not dropped for a seed while others there lack
//   it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ros/directory.h"

namespace weightlane::sim {

class WideChecker {
 public:
  WideChecker(bool on, Nanos patience) : on_(on), patience_(patience) {}

  void add_replica(std::string name, std::string datacenter, bool spot);
  void server_started();
  // Each returns what is wrong, or nothing. `directory` is in the state that the event left.
  std::string on_applied(const ros::Directory& directory, Nanos now);
  std::string on_decided(const ros::Directory& directory, Nanos now, std::string_view replica,
                         CallNumber number, net::CallKind kind, bool ok, net::Content content);
  void on_request(const ros::Directory& directory, const net::Request& request);
  void on_visible(std::string_view replica);
  // What is the latest is another checker's from now on.
  void on_rewound() { rewound_ = true; }

 private:
  struct Place {
    std::string replica;
    std::string datacenter;
    bool spot = false;
    net::Content held;          // whole and visible, after the last event
    uint64_t judged_group = 0;  // the update looked at last
    CallNumber judged = {};
  };
  // (content, datacenter) pairs and datacenters are few; both are found by looking.
  struct Touched {
    ContentId content;
    std::string datacenter;
  };
  // Updates of one datacenter that were told "nothing", one after the other.
  struct Streak {
    std::string datacenter;
    Nanos since;                    // the first
    Nanos since_nobody = kForever;  // the first while nobody was bringing anything newer
  };

  const Place& place(const ros::Group& group) const;
  Place* place_named(std::string_view replica);
  bool touched(ContentId content, const std::string& datacenter) const;
  bool whole_here(const ros::Directory& directory, ContentId content,
                  const std::string& datacenter) const;
  net::Content newest_whole(const ros::Directory& directory, const std::string* datacenter) const;
  bool renumbered(const ros::Directory& directory, const net::Content& content) const;
  std::string check_entry(const ros::Directory& directory, const ros::Assignment& assignment,
                          Nanos now);
  std::string check_choice(const ros::Directory& directory, const ros::Assignment& assignment,
                           bool crosses, Nanos now);
  std::string check_refusal(const ros::Directory& directory, Nanos now, const ros::Group& group);
  Streak* streak(const std::string& datacenter);
  Streak& refused(const std::string& datacenter, Nanos now);
  void end_streak(const std::string& datacenter);

  bool on_;
  Nanos patience_;
  uint64_t last_assignment_ = 0;
  bool rewound_ = false;
  std::vector<Place> places_;
  std::vector<Touched> touched_;
  std::vector<Streak> streaks_;
};

}  // namespace weightlane::sim
